#!/usr/bin/env python3
"""Prometheus's promtool on GET /metrics of a server that has done some work."""
import http.client, json, subprocess

import harness
from harness import SOURCE, check, equal

PROMTOOL = SOURCE / "build" / "tools" / "promtool"
# vLLM's names are kept as its dashboards have them, also where promtool would have others.
VLLM_COLON = "metric names should not contain ':'"
VLLM_ALLOWED = {'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'}


def post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    response.read()
    return response.status


def work(server):
    """Something for each kind of metric: ends of several kinds, refusals, choices."""
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    equal(post(server, "/v1/chat/completions", chat | {"n": 2}), 200, "a chat")
    equal(post(server, "/v1/chat/completions", chat | {"stream": True}), 200, "a stream")
    equal(post(server, "/v1/completions", {"prompt": "One, two", "max_tokens": 8, "stop": ["e"]}), 200, "a completion")
    equal(post(server, "/v1/chat/completions", chat | {"temperature": 9}), 400, "a wrong request")
    equal(post(server, "/v1/no-such-path", chat), 404, "an unknown path")


def complaints(text):
    """promtool's, but for those about names that are vLLM's."""
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return [line for line in lines
            if not (line.startswith("vllm:") and line.endswith(VLLM_COLON)) and line not in VLLM_ALLOWED]


def main():
    options = harness.arguments()
    with harness.serve(options) as server:
        work(server)
        text = harness.fetch(server.url, "/metrics")
    equal(complaints(text), [], "what promtool says")
    check(complaints(text + "tandem_wrong{ 1\n"), "promtool finds a broken line")
    check(complaints(text + "tandem_without_help 1\n"), "promtool finds a metric without a help")
    num_series = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    version = subprocess.run([PROMTOOL, "--version"], capture_output=True, text=True).stdout.split()[2].strip(",")
    harness.report("promtool", version, f"{num_series} series, no complaint", series=num_series, errors=0)


if __name__ == "__main__":
    main()
