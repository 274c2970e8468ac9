#!/usr/bin/env python3
"""Prometheus's promtool and the parser of its Python client on GET /metrics, of a server that has done some work."""
import http.client, json, pathlib, subprocess

from prometheus_client.parser import text_string_to_metric_families

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


def samples(text):
    """(name, labels) -> value; and the names of the families, of which each comes once."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    equal(len(names), len(set(names)), "a metric comes once")
    for family in families:
        check(family.documentation and family.type != "unknown", f"{family.name} has a help and a type")
    found = [((sample.name, tuple(sorted(sample.labels.items()))), sample.value, family.type)
             for family in families for sample in family.samples]
    equal(len(found), len({key for key, _, _ in found}), "a series comes once")
    return {key: (value, kind) for key, value, kind in found}


def check_histograms(values):
    buckets = {}
    for (name, labels), (value, kind) in values.items():
        if kind == "histogram" and name.endswith("_bucket"):
            bound = float(dict(labels)["le"])
            rest = tuple(label for label in labels if label[0] != "le")
            buckets.setdefault((name.removesuffix("_bucket"), rest), []).append((bound, value))
    for (name, labels), found in buckets.items():
        counts = [count for _, count in sorted(found)]
        equal(counts, sorted(counts), f"{name}: a bucket counts what those below it do")
        equal(counts[-1], values[(name + "_count", labels)][0], f"{name}: the last bucket counts all")
        equal(sorted(found)[-1][0], float("inf"), f"{name}: the last bucket has no bound")
    return len(buckets)


def main():
    options = harness.arguments()
    with harness.serve(options) as server:
        work(server)
        text = harness.fetch(server.url, "/metrics")
        work(server)
        later = samples(harness.fetch(server.url, "/metrics"))
    equal(complaints(text), [], "what promtool says")
    check(complaints(text + "tandem_wrong{ 1\n"), "promtool finds a broken line")
    values = samples(text)
    num_histograms = check_histograms(values)
    for key, (value, kind) in values.items():
        grows = kind in ("counter", "histogram") and not key[0].endswith("_created")
        check(key in later and (not grows or later[key][0] >= value), f"{key} grows: {value}, {later.get(key)}")
    version = subprocess.run([PROMTOOL, "--version"], capture_output=True, text=True).stdout.split()[2].strip(",")
    harness.report("promtool", version, f"{len(values)} series, {num_histograms} histograms, no complaint",
                   series=len(values), histograms=num_histograms, errors=0)


if __name__ == "__main__":
    main()
