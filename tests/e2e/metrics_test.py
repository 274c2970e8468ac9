#!/usr/bin/env python3
"""MET-01, MET-05: a server's /metrics, read by the official client's parser: metrics_test.py BASE_URL MODEL.

BASE_URL ends in /v1. Exits 1 at the first fault.
"""
import concurrent.futures, json, math, sys, urllib.request

from prometheus_client.parser import text_string_to_metric_families

BASE_URL, MODEL = sys.argv[1], sys.argv[2]
ROOT = BASE_URL.removesuffix("/v1")
COUNTERS = ["vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prompt_tokens_by_source", "vllm:prompt_tokens_cached",
            "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:request_success", "vllm:num_preemptions",
            "vllm:admission_rejections", "tandem_http_requests"]  # the parser takes their _total away
GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
          "vllm:gpu_cache_usage_perc", "vllm:cache_config_info"]
HISTOGRAMS = ["vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
              "vllm:e2e_request_latency_seconds", "vllm:request_time_per_output_token_seconds",
              "vllm:request_queue_time_seconds",
              "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_prompt_tokens",
              "vllm:request_generation_tokens", "vllm:iteration_tokens_total"]


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def families():
    with urllib.request.urlopen(ROOT + "/metrics", timeout=60) as answer:
        check(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), "the content type")
        found = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    for family in found.values():
        check(family.documentation, f"{family.name} has a help text")
        check(family.type in ("counter", "gauge", "histogram"), f"{family.name} has a type: {family.type}")
        for sample in family.samples:
            check(not math.isnan(sample.value), f"{sample} is a number")
            check(family.type == "gauge" or sample.value >= 0, f"{sample} is not below 0")
    return found


def complete(number):
    body = {"model": MODEL, "prompt": f"Number {number} is", "max_tokens": 16}
    request = urllib.request.Request(BASE_URL + "/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=300))["usage"]


families()  # before anything has happened
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    answers = [pool.submit(complete, number) for number in range(12)]
    while not all(answer.done() for answer in answers):
        families()
usages = [answer.result() for answer in answers]
after = families()
for kind, names in (("counter", COUNTERS), ("gauge", GAUGES), ("histogram", HISTOGRAMS)):
    for name in names:
        check(name in after and after[name].type == kind, f"{name} is there, as a {kind}")


def total(name, **labels):
    return sum(sample.value for sample in after[name].samples if sample.name == name + "_total" and
               labels.items() <= sample.labels.items())


for name, field in (("vllm:prompt_tokens", "prompt_tokens"), ("vllm:generation_tokens", "completion_tokens")):
    check(total(name) == sum(usage[field] for usage in usages), f"{name} is what usage says")
check(total("vllm:prompt_tokens_by_source") == total("vllm:prompt_tokens"), "the sources add up to the prompts")
cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
check(total("vllm:prompt_tokens_cached") == cached, "cached tokens are those of usage")
print(f"{len(after)} families")
