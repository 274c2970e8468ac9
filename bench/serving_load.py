#!/usr/bin/env python3
"""serving_load.py [OPTION...] : `tandem serve` and llama-server with many clients at once, each sending a prompt of 512
tokens of its own and reading 128 tokens as they come. Prints output tokens per second from the first request to the
last token, and the median time to the first token."""
import json, random, selectors, socket, sys, time

from measuring import ROOT, TANDEM, arguments, median, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file, peer_program

sys.path.insert(0, str(ROOT / "tools"))
from serving import Server, free_port  # noqa: E402

PROMPT, OUTPUT = 512, 128
VOCABULARY = 49000      # ids below this are text in the demo model
TIMEOUT_S = 600


class PeerServer(Server):
    """llama-server as a Server."""

    def __init__(self, model, threads, streams):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [peer_program("llama-server"), "-m", model, "--host", "127.0.0.1", "--port", str(self.port),
                        "-t", str(threads), "-tb", str(threads), "-np", str(streams), "-c",
                        str(streams * (PROMPT + OUTPUT + 32)), "--no-webui"]


class Stream:
    """One request over a socket of its own. Reads as little of the answer as it must: the client shares the cores."""

    def __init__(self, port, model, prompt):
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "stream": True,
                           "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.begin = time.monotonic()
        self.first = self.last = None
        self.answer = bytearray()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.socket.setblocking(False)

    def read(self):
        """False at the end."""
        data = self.socket.recv(1 << 16)
        if not data:
            return False
        self.answer += data
        self.last = time.monotonic()
        if self.first is None and b"data: " in self.answer:
            self.first = self.last
        return b"[DONE]" not in data

    def num_tokens(self):
        found = self.answer.rfind(b'"completion_tokens":')
        if found < 0:
            raise RuntimeError(f"no usage in the answer: {bytes(self.answer[:500])!r}")
        digits = bytes(self.answer[found + 20:found + 30]).strip().split(b",")[0].split(b"}")[0]
        return int(digits)


def load(port, model, num_streams, seed):
    """Tokens per second over all streams, and their times to the first token."""
    tokens = random.Random(seed)
    streams = []
    with selectors.DefaultSelector() as selector:
        for _ in range(num_streams):
            stream = Stream(port, model, [tokens.randrange(1000, VOCABULARY) for _ in range(PROMPT)])
            selector.register(stream.socket, selectors.EVENT_READ, stream)
            streams.append(stream)
        while selector.get_map():
            for key, _ in selector.select(TIMEOUT_S):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    total = sum(stream.num_tokens() for stream in streams)
    if total != OUTPUT * num_streams:
        raise RuntimeError(f"{total} tokens came, not {OUTPUT * num_streams}")
    seconds = max(stream.last for stream in streams) - min(stream.begin for stream in streams)
    return total / seconds, [stream.first - stream.begin for stream in streams]


def measure(program, streams, options):
    model = model_file(DEMO)
    rates, waits, is_idle = [], [], True
    if program == "tandem":
        server = Server(TANDEM, model, "--threads", str(options.threads))
    else:
        server = PeerServer(model, options.threads, streams)
    with server:
        load(server.port, model, 1, 0)
        for seed in range(1, options.rounds + 1):
            is_idle = wait_until_idle(options.wait) and is_idle
            rate, first = load(server.port, model, streams, seed)
            rates.append(rate)
            waits.append(median(first))
    return {"work": f"{program}, {streams} streams", "threads": options.threads, "output_tokens_per_s": median(rates),
            "ttft_p50_s": median(waits), "was_idle": is_idle, "runs": {"tokens_per_s": rates, "ttft_p50_s": waits}}


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--streams", default="8,32", help="clients at once (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="only tandem")
    options = parser.parse_args()
    rows = []
    for streams in map(int, options.streams.split(",")):
        for program in ["tandem"] if options.no_peer else ["tandem", "llama-server"]:
            say(f"{program}, {streams} streams ...")
            rows.append(measure(program, streams, options))
    print_table(["SERVER", "OUT TOKENS/S", "TTFT P50 s", "NOTE"],
                [[row["work"], f"{row['output_tokens_per_s']:.1f}", f"{row['ttft_p50_s']:.2f}",
                  "" if row["was_idle"] else "busy machine"] for row in rows])
    write_report("serving_load", rows)


if __name__ == "__main__":
    main()
