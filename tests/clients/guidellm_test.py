#!/usr/bin/env python3
"""guidellm against a server: no error, and its times are near those of the server's own histograms."""
import importlib.metadata, json, pathlib, sys

import harness
from harness import NAME, check, equal

OUTPUT_TOKENS = 16
TOLERANCE = 0.1


def main():
    options = harness.arguments()
    num_requests, streams = (500, 4) if options.full else (20, 2)
    folder = harness.scratch_folder()
    harness.write_tokenizer(options.model, folder / "tokenizer")
    output = folder / "result.json"
    with harness.serve(options) as server:
        before = harness.metrics(server.url)
        harness.run([pathlib.Path(sys.executable).parent / "guidellm", "run",
                     "--backend", f"kind=openai_http,target={server.url},model={NAME}",
                     "--profile", f"kind=concurrent,streams={streams}",
                     "--constraint", f"kind=max_requests,count={num_requests}",
                     "--tokenizer", f"kind=hf_auto,model={folder / 'tokenizer'}",
                     "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
                     "--output", f"kind=json,path={output}", "--disable-progress"],
                    timeout_s=1200, HOME=str(folder))
        after = harness.metrics(server.url)
        equal(set(harness.requests_by_status(server.url)) - {"200"}, set(), "answers other than 200")
    results = json.loads(output.read_text())["benchmarks"][0]["metrics"]
    totals = results["request_totals"]
    check(totals["successful"] >= num_requests and totals["errored"] == 0, f"requests: {totals}")
    figures = {}
    for key, histogram in (("time_to_first_token_ms", "vllm:time_to_first_token_seconds"),
                           ("inter_token_latency_ms", "vllm:request_time_per_output_token_seconds")):
        theirs_ms = results[key]["successful"]["mean"]
        ours_ms = harness.histogram_mean(before, after, histogram)[0] * 1e3
        figures[key] = {"guidellm": round(theirs_ms, 3), "tandem": round(ours_ms, 3)}
        print(f"  {key}: guidellm {theirs_ms:.2f}, {histogram} {ours_ms:.2f}")
        check(abs(theirs_ms / ours_ms - 1) <= TOLERANCE, f"{key} differs: {figures[key]}")
    harness.report("guidellm", importlib.metadata.version("guidellm"), f"{num_requests} requests, 0 errors",
                   requests=num_requests, errors=0, **figures)


if __name__ == "__main__":
    main()
