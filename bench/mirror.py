#!/usr/bin/env python3
"""mirror.py [OPTION...] : what the copy of each decode costs: two clusters, one with mirrors and one without
(`--mirror-tokens 0`), answer the same streams in turns. Printed: the time per output token and its change."""
import contextlib, statistics

from failover import Cluster
from isolation import gaps_of
from measuring import arguments, median, print_table, say, spread, wait_until_idle, write_report
from work import DEMO, model_file

FLAGS = {"on": [], "off": ["--mirror-tokens", "0"]}


def main():
    parser = arguments(__doc__)
    parser.add_argument("--topology", default="2P1D", help="of both clusters (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=4, help="that decode (default: %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="tokens of their prompts (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=300, help="that each decodes (default: %(default)s)")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    model, means, is_idle = model_file(DEMO), {"on": [], "off": []}, True
    with contextlib.ExitStack() as stack:
        clusters = {kind: stack.enter_context(Cluster(model, options.topology, "--threads", str(options.threads),
                                                      "--cluster", f"mirror-{kind}", *flags))
                    for kind, flags in FLAGS.items()}
        for seed in range(options.rounds + 1):
            is_idle = wait_until_idle(options.wait) and is_idle
            answers = []
            for kind in sorted(means, reverse=seed % 2 == 0):
                gaps, answer = gaps_of(clusters[kind].port, model, options, seed)
                answers.append(answer)
                if seed > 0:  # the first round opens connections
                    means[kind].append(statistics.fmean(gaps))
            if answers[0] != answers[1]:
                raise RuntimeError("the mirror changed an answer")
            say(f"round {seed}")
    ratios = [on / off for on, off in zip(means["on"], means["off"])]
    row = {"work": f"{options.topology}, {options.streams} streams, context {options.context}",
           "threads": options.threads, "was_idle": is_idle, "tpot_on_ms": median(means["on"]),
           "tpot_off_ms": median(means["off"]), "change": median(ratios) - 1, "spread": spread(ratios)}
    print_table(["WORK", "TPOT ON ms", "OFF ms", "CHANGE", "SPREAD", "NOTE"],
                [[row["work"], f"{row['tpot_on_ms']:.3f}", f"{row['tpot_off_ms']:.3f}", f"{row['change'] * 100:+.1f}%",
                  f"{row['spread'] * 100:.0f}%", "" if is_idle else "busy machine"]])
    write_report("mirror", [row])


if __name__ == "__main__":
    main()
