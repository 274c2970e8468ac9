#!/usr/bin/env python3
"""transfer.py [OPTION...] : how much of a prompt's KV transfer a client waits for, with the KV pushed as its layers are
computed (`--push layer`) against after the step (`--push step`, with the whole prompt in one step). Two clusters of one
prefill and one decode node answer the same prompts in turns. A client sees the transfer between the first token, which
the prefill node samples, and the second: what is exposed is that pause less the median pause between later tokens."""
import contextlib, random, selectors

from failover import VOCABULARY, Cluster, Stream
from measuring import arguments, median, print_table, say, spread, wait_until_idle, write_report
from work import DEMO, model_file

TRANSPORTS = {"shm": [], "tcp": ["--data-address", "tcp:127.0.0.1:0"],
              "tcp-1gbit": ["--data-address", "tcp:127.0.0.1:0", "--kv-rate", "125000000"]}
NUM_TOKENS = 10


def ask(cluster, model, prompt):
    """Seconds to the first token, from it to the second, and between the later ones; and the answer."""
    stream = Stream(cluster.port, model, prompt, NUM_TOKENS)
    begin_s = stream.begin_s
    with selectors.DefaultSelector() as selector:
        selector.register(stream.socket, selectors.EVENT_READ)
        while selector.select() and stream.read():
            pass
    stream.socket.close()
    pauses = [after - before for before, after in zip(stream.times, stream.times[1:])]
    return stream.times[0] - begin_s, pauses[0], median(pauses[1:]), stream.tokens


def measure(options, transport):
    model = model_file(DEMO)
    flags = ["--threads", str(options.threads), "--max-num-batched-tokens", str(options.prompt + 64),
             "--tpot-target-ms", "0", *TRANSPORTS[transport], *options.flag]
    rows, is_idle = {"layer": [], "step": []}, True
    with contextlib.ExitStack() as stack:
        clusters = {push: stack.enter_context(Cluster(model, "1P1D", *flags, "--push", push, "--cluster", push))
                    for push in rows}
        for seed in range(options.rounds + 1):
            is_idle = wait_until_idle(options.wait) and is_idle
            tokens = random.Random(seed)
            prompt = [tokens.randrange(1000, VOCABULARY) for _ in range(options.prompt)]
            answers = []
            for push in sorted(rows, reverse=seed % 2 == 1):
                *times, answer = ask(clusters[push], model, prompt)
                answers.append(answer)
                if seed > 0:  # the first round opens connections
                    rows[push].append(times)
            if answers[0] != answers[1]:
                raise RuntimeError("the answer depends on how KV was pushed")
            say(f"{transport}, round {seed}")
    row = {"work": f"{transport}, {options.prompt} prompt tokens", "threads": options.threads, "was_idle": is_idle,
           "pairs": options.rounds}
    for push, times in rows.items():
        exposed = [(pause - usual) * 1e3 for _, pause, usual in times]
        second = [(first + pause) * 1e3 for first, pause, _ in times]
        row |= {f"{push}_exposed_ms": median(exposed), f"{push}_all_exposed_ms": exposed,
                f"{push}_ttft_ms": median([first * 1e3 for first, _, _ in times]),
                f"{push}_second_token_ms": median(second), f"{push}_second_token_spread": spread(second)}
    return row


def main():
    parser = arguments(__doc__)
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of each prompt (default: %(default)s)")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="(default: %(default)s)")
    parser.add_argument("--flag", action="append", default=[], help="for `tandem up`; may be repeated")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    rows = [measure(options, transport) for transport in options.transports.split(",")]
    print_table(["WORK", "EXPOSED step ms", "layer ms", "TTFT step ms", "layer ms", "2ND TOKEN step ms", "layer ms",
                 "NOTE"],
                [[row["work"], *(f"{row[f'{push}_{what}_ms']:.0f}" for what in ("exposed", "ttft", "second_token")
                                 for push in ("step", "layer")), "" if row["was_idle"] else "busy machine"]
                 for row in rows])
    write_report("transfer", rows)


if __name__ == "__main__":
    main()
