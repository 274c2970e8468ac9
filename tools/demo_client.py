#!/usr/bin/env python3
"""demo_client.py PROGRAM MODEL [QUESTION] : starts `PROGRAM serve MODEL` on a free port of 127.0.0.1, asks one
question over the API with streaming, prints the answer as it comes, then what was measured at the client, and stops
the server."""
import http.client, json, sys, time

from serving import Server

QUESTION = "What is the capital of France? Answer in one sentence."
ANSWER_TIMEOUT_S = 120


def events(response):
    """The JSON of each server-sent event, until [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            payload = line[6:].strip()
            if payload == b"[DONE]":
                return
            yield json.loads(payload)
    raise RuntimeError("the stream ended without [DONE]")


def ask(port, model, question):
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
            "max_tokens": 128, "messages": [{"role": "user", "content": question}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {response.read().decode(errors='replace')}")
    first = last = num_tokens = None
    for event in events(response):
        if "error" in event:
            raise RuntimeError(event["error"].get("message", "the server reported an error"))
        if event.get("usage"):
            num_tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            text = choice["delta"].get("content")
            if text:
                last = time.monotonic()
                first = first or last
                print(text, end="", flush=True)
    print()
    if not num_tokens or first is None:
        raise RuntimeError("the answer was empty")
    return num_tokens, first - start, last - first


def main(program, model, question=QUESTION):
    try:
        with Server(program, model) as server:
            print(f"\n> {question}\n")
            num_tokens, ttft_s, decode_s = ask(server.port, model, question)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    tpot_s = decode_s / max(num_tokens - 1, 1)
    rate = f"{1 / tpot_s:.1f} tokens/s" if tpot_s > 0 else "one token"
    print(f"\nTTFT {ttft_s * 1e3:.0f} ms, TPOT {tpot_s * 1e3:.1f} ms, {rate}, {num_tokens} tokens "
          "(measured at the client)")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:4]))
