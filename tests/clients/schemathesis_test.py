#!/usr/bin/env python3
"""Random requests by the server's own description of itself: schemathesis_test.py TANDEM FIXTURES.

Checked is that no request costs more than itself: no 5xx, no answer of a status, type or shape that /openapi.json does
not name. This file is also the hooks that schemathesis loads. Exits 1 when it found something."""
import os, pathlib, random, subprocess, sys, tempfile

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "unsupported_method", "allow_header_conformance"]
NUM_EXAMPLES = 50
HERE = pathlib.Path(__file__).resolve()
# The fixture's own directory has no template; a random model takes any.
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def main(program, fixtures):
    sys.path.insert(0, str(HERE.parents[2] / "tools"))
    from serving import Server
    model = str(pathlib.Path(fixtures) / "tiny" / "llama-gqa.F16.gguf")
    with tempfile.TemporaryDirectory(prefix="tandem-schemathesis-") as scratch:
        template = pathlib.Path(scratch) / "chat.jinja"
        template.write_text(TEMPLATE)
        flags = ["--served-model-name", "tiny", "--chat-template", str(template), "--kv-blocks", "64", "--threads", "1",
                 "--max-model-len", "64", "--max-logprobs", "8", "--no-pack-cache"]
        with Server(program, model, *flags) as server:
            command = [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json",
                       "--checks", ",".join(CHECKS), "--max-examples", str(NUM_EXAMPLES), "--seed", "1",
                       "--phases", "examples,coverage,fuzzing", "--generation-database", "none",
                       "--request-timeout", "30", "--continue-on-failure"]
            environment = os.environ | {"SCHEMATHESIS_HOOKS": str(HERE)}
            done = subprocess.run(command, env=environment, cwd=scratch)
            if done.returncode != 0:
                sys.exit("schemathesis found a fault")


def thin_out(context, body):
    """Random bodies name models that are not there, and one wrong field of many refuses a request: with most of their
    optional fields left out they come further."""
    if not isinstance(body, dict):
        return body
    chance = random.Random(repr(body))
    needed = {"messages", "prompt", "input", "tokens", "max_tokens"}
    kept = {key: value for key, value in body.items() if key in needed or chance.random() < 0.3}
    if chance.random() < 0.8:
        kept.pop("model", None)
    return kept


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
else:
    import schemathesis
    schemathesis.hook("map_body")(thin_out)
