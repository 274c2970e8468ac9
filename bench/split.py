#!/usr/bin/env python3
"""split.py TRACE.csv [OPTION...] : a recorded load (TIMESTAMP,ContextTokens,GeneratedTokens) on three real nodes: two
that prefill and one that decodes, against three mixed ones, in turns. Prompts longer than --longest are cut. Printed:
time to the first token, time per token, and the longest pauses."""
import csv, datetime, random, selectors, time

from failover import VOCABULARY, Cluster, Stream
from measuring import arguments, median, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file


def arrivals(path, count, rate, longest):
    """(second, prompt tokens, generated tokens) of the first requests, their gaps scaled to the mean rate."""
    rows = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            prompt, generated = (min(int(row[key]), longest) for key in ("ContextTokens", "GeneratedTokens"))
            rows.append((at, prompt, max(generated, 2)))
            if len(rows) == count:
                break
    scale = (count - 1) / (rows[-1][0] - rows[0][0]) / rate
    return [((at - rows[0][0]) * scale, prompt, generated) for at, prompt, generated in rows]


def play(port, model, load):
    """Streams as they come; each is read as fast as it can be."""
    streams, waiting, begin = [], list(reversed(load)), time.monotonic()
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and time.monotonic() - begin >= waiting[-1][0]:
                _, prompt, generated = waiting.pop()
                tokens = random.Random(len(streams))
                stream = Stream(port, model, [tokens.randrange(1000, VOCABULARY) for _ in range(prompt)], generated)
                stream.asked = time.monotonic()
                selector.register(stream.socket, selectors.EVENT_READ, stream)
                streams.append(stream)
            pause = max(begin + waiting[-1][0] - time.monotonic(), 0) if waiting else 600
            for key, _ in selector.select(pause):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return streams


def at(values, share):
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))] * 1e3


def describe(streams):
    first = [stream.times[0] - stream.asked for stream in streams]
    each = [(stream.times[-1] - stream.times[0]) / (len(stream.times) - 1) for stream in streams]
    gaps = [after - before for stream in streams for before, after in zip(stream.times, stream.times[1:])]
    return {"ttft_ms_p50": at(first, 0.5), "ttft_ms_p99": at(first, 0.99), "tpot_ms_p50": at(each, 0.5),
            "tpot_ms_p99": at(each, 0.99), "gap_ms_p99": at(gaps, 0.99), "gap_ms_p999": at(gaps, 0.999)}


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("trace")
    parser.add_argument("--requests", type=int, default=60, help="of each run (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of a prompt or answer (default: %(default)s)")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    model, load = model_file(DEMO), arrivals(options.trace, options.requests, options.rate, options.longest)
    found, is_idle = {"2P1D": [], "3M": []}, True
    for round_index in range(options.rounds):
        answers = []
        for topology in sorted(found, reverse=round_index % 2 == 1):
            is_idle = wait_until_idle(options.wait) and is_idle
            with Cluster(model, topology, "--threads", str(options.threads)) as cluster:
                streams = play(cluster.port, model, load)
            found[topology].append(describe(streams))
            answers.append([stream.tokens for stream in streams])
            say(f"{topology}, round {round_index + 1}")
        if answers[0] != answers[1]:
            raise RuntimeError("the topology changed an answer")
    rows = [{"work": topology, "threads": options.threads, "was_idle": is_idle, "requests": options.requests,
             "rate": options.rate} | {key: median([run[key] for run in runs]) for key in runs[0]} | {"runs": runs}
            for topology, runs in found.items()]
    print_table(["NODES", "TTFT P50 ms", "P99", "TPOT P50 ms", "P99", "GAP P99 ms", "P99.9", "NOTE"],
                [[row["work"], *(f"{row[key]:.0f}" for key in ("ttft_ms_p50", "ttft_ms_p99")),
                  *(f"{row[key]:.1f}" for key in ("tpot_ms_p50", "tpot_ms_p99", "gap_ms_p99", "gap_ms_p999")),
                  "" if is_idle else "busy machine"] for row in rows])
    write_report("split", rows)


if __name__ == "__main__":
    main()
