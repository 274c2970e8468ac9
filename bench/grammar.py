#!/usr/bin/env python3
"""grammar.py [OPTION...] : what answers that have to fit a grammar cost those beside them in the batch. The same plain
streams decode beside as many others, which are plain, fit a JSON schema, or fit a grammar made to be slow, in turns.
Prints JSON: the plain streams' time per output token, its change, and the masks' times by the server's metrics."""
import json, re, socket, sys, threading, time

from failover import TIMEOUT_S, VOCABULARY
from measuring import ROOT, TANDEM, arguments, median, say, wait_until_idle, write_report
from work import DEMO, model_file

sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402



def schema(name, text):
    """Of an answer whose strings have these limits."""
    note = {"type": "object", "additionalProperties": False, "required": ["text", "stars"],
            "properties": {"text": {"type": "string"} | text, "stars": {"type": "number"}}}
    return {"type": "object", "additionalProperties": False, "required": ["name", "notes"], "properties": {
        "name": {"type": "string"} | name, "age": {"type": "integer"}, "kind": {"enum": ["person", "place", "thing"]},
        "notes": {"type": "array", "minItems": 20, "items": note}}}


# Where strings are of any length, what may come next is soon known; in a counted one it is new at every token.
ANY_LENGTH, COUNTED = schema({}, {}), schema({"maxLength": 40}, {"minLength": 60})
# Every mask counts on: the time of one grows with what may still come.
SLOW = "[a-zA-Z ,.]{10000}"
BESIDE = {"plain": {"ignore_eos": True}, "json_schema_any_length": {"structured_outputs": {"json": ANY_LENGTH}},
          "json_schema": {"structured_outputs": {"json": COUNTED}},
          "slow_regex": {"structured_outputs": {"regex": SLOW}}}


class Stream(threading.Thread):
    """One request, read to its end or until it is told to stop; remembers when its tokens came."""

    def __init__(self, port, body):
        super().__init__(daemon=True)
        self.port, self.times, self.is_over = port, [], False
        self.body = json.dumps(body | {"stream": True, "return_token_ids": True}).encode()
        self.start()

    def run(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                               b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(self.body)
                               + self.body)
            for line in connection.makefile("rb"):
                if line.startswith(b'data: {"error'):
                    raise RuntimeError(line.decode())
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        self.times += [time.monotonic()] * len(choice.get("token_ids") or [])
                if line.startswith(b"data: [DONE]") or self.is_over:
                    return


class Others:
    """`count` streams of a kind, each begun anew when it ends, until the block ends."""

    def __init__(self, port, kind, count):
        self.port, self.kind, self.is_over, self.num_tokens = port, kind, False, 0
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        for seed in range(number * 1000, number * 1000 + 999):
            if self.is_over:
                return
            stream = Stream(self.port, {"model": "bench", "prompt": [VOCABULARY // 2 + seed], "max_tokens": 400,
                                        "temperature": 0.8, "seed": seed} | BESIDE[self.kind])
            while stream.is_alive():
                stream.is_over = self.is_over
                stream.join(0.05)
            self.num_tokens += len(stream.times)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.is_over = True
        for thread in self.threads:
            thread.join()


def tpot_ms(port, kind, options):
    with Others(port, kind, options.beside) as others:
        time.sleep(1)  # all have begun
        streams = [Stream(port, {"model": "bench", "prompt": [1000 + n] * 16, "max_tokens": options.tokens, "seed": n,
                                 "ignore_eos": True}) for n in range(options.streams)]
        for stream in streams:
            stream.join(TIMEOUT_S)
    if any(len(stream.times) != options.tokens for stream in streams):
        raise RuntimeError("a stream did not come to its end")
    if others.num_tokens == 0:
        raise RuntimeError(f"nothing of kind {kind} was beside")
    return median([(s.times[-1] - s.times[0]) / (len(s.times) - 1) * 1e3 for s in streams])


def buckets(server, name):
    """[(upper bound, cumulative count)] of a histogram."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = connection.makefile("rb").read().decode()
    return [(float(bound.replace("+Inf", "inf")), int(count))
            for bound, count in re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\d+)', text, re.M)]


def quantile_us(before, after, share):
    """The upper bound of the bucket that it lies in."""
    counts = [(bound, count - dict(before).get(bound, 0)) for bound, count in after]
    if not counts or counts[-1][1] == 0:
        return None
    return next(bound for bound, count in counts if count >= share * counts[-1][1]) * 1e6


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--streams", type=int, default=4, help="plain ones that are measured (default: %(default)s)")
    parser.add_argument("--beside", type=int, default=4, help="others in the batch (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=150, help="of each measured stream (default: %(default)s)")
    options = parser.parse_args()
    rows = {kind: {"tpot_ms": []} for kind in BESIDE}
    is_idle = True
    with Server(TANDEM, model_file(DEMO), "--threads", str(options.threads), "--served-model-name", "bench") as server:
        for round_number in range(options.rounds + 1):  # the first warms up: weights, the grammars' engine
            is_idle = wait_until_idle(options.wait) and is_idle
            for kind, row in rows.items():
                before = buckets(server, "tandem_grammar_mask_seconds")
                value = tpot_ms(server.port, kind, options)
                after = buckets(server, "tandem_grammar_mask_seconds")
                say(f"round {round_number}: {kind}: {value:.2f} ms")
                if round_number > 0:
                    row["tpot_ms"].append(value)
                    row["mask_p50_us"], row["mask_p99_us"] = (quantile_us(before, after, q) for q in (0.5, 0.99))
    plain = median(rows["plain"]["tpot_ms"])
    for kind, row in rows.items():
        row["neighbour_tpot_ms"] = round(median(row["tpot_ms"]), 3)
        row["change"] = round(median(row["tpot_ms"]) / plain - 1, 4)
        row["tpot_ms"] = [round(value, 3) for value in row["tpot_ms"]]
    result = {"streams": options.streams, "beside": options.beside, "was_idle": is_idle} | rows
    print(json.dumps(result, indent=1))
    write_report("grammar", [{"work": f"{options.streams} streams beside {options.beside}"} | result])


if __name__ == "__main__":
    main()
