#!/usr/bin/env python3
"""`vllm bench serve` against a server: no error, and its times are near those of the server's own histograms."""
import importlib.metadata, json, pathlib, sys

import harness
from harness import NAME, check, equal

OUTPUT_TOKENS = 16
TOLERANCE = 0.1


def bench(server, folder, kind, num_requests, concurrency):
    endpoint = {"openai-chat": "/v1/chat/completions", "openai": "/v1/completions"}[kind]
    harness.run([pathlib.Path(sys.executable).parent / "vllm", "bench", "serve", "--backend", kind,
                 "--base-url", server.url, "--endpoint", endpoint, "--model", NAME, "--tokenizer", folder / "tokenizer",
                 "--dataset-name", "random", "--random-input-len", 32, "--random-output-len", OUTPUT_TOKENS,
                 "--num-prompts", num_requests, "--max-concurrency", concurrency, "--ignore-eos", "--save-result",
                 "--result-dir", folder, "--result-filename", f"{kind}.json"], timeout_s=1200, HOME=str(folder))
    return json.loads((folder / f"{kind}.json").read_text())


def main():
    options = harness.arguments()
    num_requests, concurrency = (500, 4) if options.full else (20, 2)
    folder = harness.scratch_folder()
    harness.write_tokenizer(options.model, folder / "tokenizer")
    figures = {}
    with harness.serve(options) as server:
        for kind in ("openai-chat", "openai"):
            before = harness.metrics(server.url)
            result = bench(server, folder, kind, num_requests, concurrency)
            after = harness.metrics(server.url)
            equal((result["completed"], result["failed"]), (num_requests, 0), f"requests of {kind}")
            equal(result["total_output_tokens"], num_requests * OUTPUT_TOKENS, f"output tokens of {kind}")
            for key, histogram in (("mean_ttft_ms", "vllm:time_to_first_token_seconds"),
                                   ("mean_tpot_ms", "vllm:request_time_per_output_token_seconds")):
                ours_ms = harness.histogram_mean(before, after, histogram)[0] * 1e3
                figures[f"{kind} {key}"] = {"vllm": round(result[key], 3), "tandem": round(ours_ms, 3)}
                print(f"  {kind} {key}: vllm bench {result[key]:.2f}, {histogram} {ours_ms:.2f}", flush=True)
                check(abs(result[key] / ours_ms - 1) <= TOLERANCE, f"{key} differs: {result[key]}, {ours_ms}")
        equal(set(harness.requests_by_status(server.url)) - {"200"}, set(), "answers other than 200")
    harness.report("vllm bench serve", importlib.metadata.version("vllm"), f"2 x {num_requests} requests, 0 errors",
                   requests=2 * num_requests, errors=0, **figures)


if __name__ == "__main__":
    main()
