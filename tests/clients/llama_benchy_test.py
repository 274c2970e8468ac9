#!/usr/bin/env python3
"""llama-benchy against a server: no error, and as many requests and tokens as it was told."""
import importlib.metadata, json, pathlib, sys

import harness
from harness import NAME, check, equal

BOOK = "It was a bright cold day in April, and the clocks were striking thirteen. " * 400
NUM_WARM_UPS = 2  # before all tests, of one token each; and one round before each test


def main():
    options = harness.arguments()
    prompts, answer, runs, concurrencies = ([128, 512], 64, 5, [1, 4]) if options.full else ([64], 16, 3, [1, 2])
    folder = harness.scratch_folder()
    harness.write_tokenizer(options.model, folder / "tokenizer")
    book = harness.Lines(BOOK)
    book.start()
    output = folder / "result.json"
    with harness.serve(options) as server:
        before = harness.metrics(server.url)
        harness.run([pathlib.Path(sys.executable).parent / "llama-benchy", "--base-url", server.url + "/v1",
                     "--model", NAME, "--tokenizer", folder / "tokenizer", "--pp", *prompts, "--tg", answer,
                     "--exact-tg", "--runs", runs, "--concurrency", *concurrencies, "--latency-mode", "api",
                     "--skip-coherence", "--exit-on-first-fail", "--format", "json", "--save-result", output,
                     "--book-url", book.url], HOME=str(folder))
        after = harness.metrics(server.url)
        equal(set(harness.requests_by_status(server.url)) - {"200"}, set(), "answers other than 200")
    rows = json.loads(output.read_text())["benchmarks"]
    equal([(row["concurrency"], row["prompt_size"], row["response_size"]) for row in rows],
          [(users, prompt, answer) for prompt in prompts for users in concurrencies], "what was measured")
    num_requests = len(prompts) * sum(concurrencies) * (runs + 1)
    equal(after["vllm:generation_tokens_total"] - before.get("vllm:generation_tokens_total", 0),
          num_requests * answer + NUM_WARM_UPS, "output tokens of the server")
    figures = []
    for row in rows:
        prompt, decode = row["pp_throughput"]["mean"], row["tg_throughput"]["mean"]
        check(prompt > 0 and decode > 0, f"speeds: {row}")
        equal(len(row["tg_throughput"]["values"]), runs, "rounds that gave a figure")
        figures.append({"concurrency": row["concurrency"], "prompt": row["prompt_size"],
                        "prompt_tokens_per_s": round(prompt, 1), "output_tokens_per_s": round(decode, 1),
                        "ttft_ms": round(row["e2e_ttft"]["mean"], 1)})
        print(f"  {figures[-1]}", flush=True)
    harness.report("llama-benchy", importlib.metadata.version("llama-benchy"),
                   f"{num_requests + NUM_WARM_UPS} requests, 0 errors", requests=num_requests + NUM_WARM_UPS, errors=0,
                   rows=figures)


if __name__ == "__main__":
    main()
