#!/usr/bin/env python3
"""isolation.py [OPTION...] : how much a flood of long prompts disturbs streams that decode: on a prefill and a decode
node of their own, and on one mixed process. The same streams run with and without the flood, in turns. Printed: the
time between their tokens at the client, and the decode node's steps by its own clock."""
import contextlib, http.client, json, random, statistics, sys, threading

from failover import TIMEOUT_S, VOCABULARY, Cluster, metrics_port_of, run_streams
from measuring import ROOT, TANDEM, arguments, median, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file

sys.path.insert(0, str(ROOT / "tools"))
from serving import Server, free_port  # noqa: E402

WARM_TOKENS = 24  # of each stream, before anything is counted: by then the flood flows


def prompt_of(seed, length):
    tokens = random.Random(seed)
    return [tokens.randrange(1000, VOCABULARY) for _ in range(length)]


class Flood:
    """Long prompts, `width` at a time, until the block ends."""

    def __init__(self, port, model, length, width):
        self.arguments, self.is_over, self.num_done = (port, model, length), False, 0
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(width)]

    def run(self, number):
        port, model, length = self.arguments
        for seed in range(number * 100_000, number * 100_000 + 99_999):
            if self.is_over:
                return
            body = json.dumps({"model": model, "prompt": prompt_of(seed, length), "max_tokens": 1})
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the flood's request was refused: {answer.status}")
            self.num_done += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *failure):
        self.is_over = True
        for thread in self.threads:
            thread.join()


def gaps_of(port, model, options, seed):
    """Milliseconds between the tokens of all streams, once all of them decode; and their answers."""
    prompts = [prompt_of(1000 * seed + number, options.context) for number in range(options.streams)]
    streams = run_streams(port, model, prompts, options.tokens, lambda _: False, None)
    begin = max(stream.times[WARM_TOKENS] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    gaps = [(after - before) * 1e3 for stream in streams for before, after in zip(stream.times, stream.times[1:])
            if before >= begin and after <= end]
    return gaps, [stream.tokens for stream in streams]


def steps_of(port):
    """Of the node whose metrics are at that port: its newest steps, as [number, ms, decode rows, prompt tokens]."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/steps")
    return json.loads(connection.getresponse().read())["steps"]


def describe(values):
    ordered = sorted(values)
    return {"mean_ms": statistics.fmean(values), "deviation_ms": statistics.pstdev(values),
            "p99_ms": ordered[int(0.99 * (len(ordered) - 1))]}


def measure(options, name, port, model, metrics_port):
    """Rows of one system: quiet and beside the flood, in turns."""
    found = {"quiet": {"gaps": [], "steps": []}, "flood": {"gaps": [], "steps": []}}
    is_idle, num_prompts = True, 0
    for seed in range(options.rounds):
        answers = []
        for kind in sorted(found, reverse=seed % 2 == 0):
            is_idle = wait_until_idle(options.wait) and is_idle
            steps = steps_of(metrics_port) if metrics_port else []
            before = steps[-1][0] if steps else 0
            with contextlib.ExitStack() as stack:
                flood = stack.enter_context(Flood(port, model, options.prompt, 2)) if kind == "flood" else None
                gaps, answer = gaps_of(port, model, options, seed)
                if metrics_port:
                    found[kind]["steps"] += [ms for number, ms, rows, _ in steps_of(metrics_port)
                                             if number > before and rows == options.streams]
            num_prompts += flood.num_done if flood else 0
            found[kind]["gaps"] += gaps
            answers.append(answer)
        if answers[0] != answers[1]:
            raise RuntimeError("the flood changed an answer")
        say(f"{name}, round {seed + 1}")
    row = {"work": name, "threads": options.threads, "was_idle": is_idle, "flood_prompts": num_prompts,
           "streams": options.streams, "context": options.context, "prompt": options.prompt}
    for what in ("gaps", "steps"):
        if found["quiet"][what]:
            quiet, flood = (describe(found[kind][what]) for kind in ("quiet", "flood"))
            row[what] = {"quiet": quiet, "flood": flood,
                         "p99_change": flood["p99_ms"] / quiet["p99_ms"] - 1,
                         "mean_change": flood["mean_ms"] / quiet["mean_ms"] - 1}
            say(f"{name}, {what}: p99 {quiet['p99_ms']:.2f} ms, {flood['p99_ms']:.2f} beside the flood")
    return row


def main():
    parser = arguments(__doc__)
    parser.add_argument("--streams", type=int, default=4, help="that decode (default: %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="tokens of their prompts (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=400, help="that each decodes (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the flood's (default: %(default)s)")
    options = parser.parse_args()
    model = model_file(DEMO)
    rows = []
    per_node = max(options.threads // 2, 1)
    with Cluster(model, "1P1D", "--threads", str(per_node), "--metrics-port", str(free_port())) as cluster:
        decodes = next(node for node in cluster.nodes() if node["role"] == "decode")
        name = f"1P1D, {per_node} thread each"
        rows.append(measure(options, name, cluster.port, model, metrics_port_of(decodes)))
    with Server(TANDEM, model, "--threads", str(options.threads)) as server:
        rows.append(measure(options, f"one process, {options.threads} threads", server.port, model, None))
    table = []
    for row in rows:
        for what, title in (("gaps", "client"), ("steps", "step clock")):
            if what in row:
                quiet, flood = row[what]["quiet"], row[what]["flood"]
                table.append([row["work"], title, *(f"{side[key]:.2f}" for key in ("mean_ms", "deviation_ms", "p99_ms")
                                                    for side in (quiet, flood)),
                              f"{row[what]['p99_change'] * 100:+.0f}%", "" if row["was_idle"] else "busy machine"])
    print_table(["WORK", "AT", "MEAN ms", "FLOOD", "DEVIATION", "FLOOD", "P99", "FLOOD", "P99 CHANGE", "NOTE"], table)
    write_report("isolation", rows)


if __name__ == "__main__":
    main()
