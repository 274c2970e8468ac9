#!/usr/bin/env python3
"""with_server.py PROGRAM MODEL SCRIPT : runs SCRIPT BASE_URL MODEL, with this Python, against
`PROGRAM serve MODEL`. BASE_URL ends in /v1."""
import subprocess, sys

from serving import Server


def main(program, model, script):
    with Server(program, model) as server:
        result = subprocess.run([sys.executable, script, server.url + "/v1", model], stdin=subprocess.DEVNULL)
        if result.returncode != 0:
            raise RuntimeError(f"{script} ended with code {result.returncode}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
