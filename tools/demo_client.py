#!/usr/bin/env python3
"""demo_client.py PROGRAM MODEL [QUESTION] : starts `PROGRAM serve MODEL` on a free port of 127.0.0.1, asks one
question over the API with streaming, prints the answer as it comes, then what was measured at the client, and stops
the server."""
import http.client, json, signal, socket, subprocess, sys, tempfile, time

QUESTION = "What is the capital of France? Answer in one sentence."
START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_healthy(server, port):
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server was not healthy after {START_TIMEOUT_S} s")


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
    port = free_port()
    log = tempfile.TemporaryFile()
    server = subprocess.Popen([program, "serve", model, "--host", "127.0.0.1", "--port", str(port)],
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until_healthy(server, port)
        print(f"\n> {question}\n")
        num_tokens, ttft_s, decode_s = ask(port, model, question)
        tpot_s = decode_s / max(num_tokens - 1, 1)
        rate = f"{1 / tpot_s:.1f} tokens/s" if tpot_s > 0 else "one token"
        print(f"\nTTFT {ttft_s * 1e3:.0f} ms, TPOT {tpot_s * 1e3:.1f} ms, {rate}, {num_tokens} tokens "
              "(measured at the client)")
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        log.seek(0)
        sys.stderr.write(log.read().decode(errors="replace"))
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=35)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:4]))
