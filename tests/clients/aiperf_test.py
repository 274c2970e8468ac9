#!/usr/bin/env python3
"""aiperf against a server: no error, and its figures are those of the server's own histograms.

aiperf's time to first token is from the request to the first chunk with text, its inter-token latency is the time from
there to the last such chunk, divided by the tokens after the first: what vllm:time_to_first_token_seconds and
vllm:request_time_per_output_token_seconds are at the server."""
import importlib.metadata, json, pathlib, sys

import harness
from harness import NAME, check, equal

TOLERANCE = 0.05  # of the means
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 16
PAIRS = {"time_to_first_token": "vllm:time_to_first_token_seconds",
         "inter_token_latency": "vllm:request_time_per_output_token_seconds",
         "request_latency": "vllm:e2e_request_latency_seconds"}


def profile(server, folder, tokenizer, num_requests, concurrency):
    aiperf = pathlib.Path(sys.executable).parent / "aiperf"
    # offline=False: with it, aiperf refuses a tokenizer that is a folder.
    harness.run([aiperf, "profile", "--model", NAME, "--url", server.url, "--endpoint-type", "chat", "--streaming",
                 "--tokenizer", tokenizer, "--synthetic-input-tokens-mean", PROMPT_TOKENS,
                 "--output-tokens-mean", OUTPUT_TOKENS, "--extra-inputs", "ignore_eos:true",
                 "--concurrency", concurrency, "--request-count", num_requests, "--random-seed", 1,
                 "--use-server-token-count", "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics",
                 "--artifact-dir", folder], offline=False, HOME=str(folder), TOKENIZERS_PARALLELISM="false")
    return json.loads((folder / "profile_export_aiperf.json").read_text())


def check_counts(theirs, before, after, num_requests):
    def grown(name):
        return after.get(name, 0) - before.get(name, 0)
    equal(theirs["request_count"]["avg"], num_requests, "requests that aiperf counts as good")
    equal((theirs.get("error_request_count") or {"avg": 0})["avg"], 0, "requests that aiperf counts as failed")
    equal(theirs["total_output_tokens"]["avg"], num_requests * OUTPUT_TOKENS, "output tokens that aiperf counts")
    equal(grown("vllm:generation_tokens_total"), num_requests * OUTPUT_TOKENS, "output tokens of the server")
    equal(grown("vllm:prompt_tokens_total"), theirs["total_isl"]["avg"], "prompt tokens")


def compare(theirs, before, after, num_requests):
    figures = {}
    for tag, histogram in PAIRS.items():
        ours_s, count = harness.histogram_mean(before, after, histogram)
        equal(count, num_requests, f"requests in {histogram}")
        equal(theirs[tag]["unit"], "ms", f"the unit of {tag}")
        theirs_ms, ours_ms = theirs[tag]["avg"], ours_s * 1e3
        figures[tag] = {"aiperf_ms": round(theirs_ms, 3), "tandem_ms": round(ours_ms, 3),
                        "ratio": round(theirs_ms / ours_ms, 4)}
        print(f"  {tag}: aiperf {theirs_ms:.2f} ms, {histogram} {ours_ms:.2f} ms", flush=True)
    return figures


def main():
    options = harness.arguments()
    num_requests, concurrency = (1000, 8) if options.full else (200, 4)
    folder = harness.scratch_folder()
    harness.write_tokenizer(options.model, folder / "tokenizer")
    with harness.serve(options) as server:
        before = harness.metrics(server.url)
        theirs = profile(server, folder / "artifacts", folder / "tokenizer", num_requests, concurrency)
        after = harness.metrics(server.url)
        equal(set(harness.requests_by_status(server.url)) - {"200"}, set(), "answers other than 200")
    check_counts(theirs, before, after, num_requests)
    figures = compare(theirs, before, after, num_requests)
    for tag, figure in figures.items():
        check(abs(figure["ratio"] - 1) <= TOLERANCE, f"{tag} of aiperf and of the server differ: {figure}")
    worst = max(abs(figure["ratio"] - 1) for figure in figures.values())
    harness.report("aiperf", importlib.metadata.version("aiperf"),
                   f"{num_requests} requests, 0 errors; means within {worst:.1%} of the server's histograms",
                   requests=num_requests, concurrency=concurrency, errors=0, **figures)


if __name__ == "__main__":
    main()
