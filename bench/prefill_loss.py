#!/usr/bin/env python3
"""prefill_loss.py [OPTION...] : kills the node that computes a prompt, before its first token, and prints how much
later the token came than it must: time to the first token, less the undisturbed one, less the work that was lost with
the node (from asking to the blow). Every answer is compared with the undisturbed one."""
import os, random, selectors, signal, time

from failover import TIMEOUT_S, VOCABULARY, Cluster, Stream, victim, wait_until_whole
from measuring import arguments, median, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file

NUM_TOKENS = 16


def ask(cluster, model, prompt, strike_after_s=None):
    """The stream, and when the node was struck."""
    stream, struck_s = Stream(cluster.port, model, prompt, NUM_TOKENS), None
    begin_s = stream.begin_s
    with selectors.DefaultSelector() as selector:
        selector.register(stream.socket, selectors.EVENT_READ)
        while True:
            is_over = strike_after_s is None or struck_s is not None
            waits = TIMEOUT_S if is_over else max(begin_s + strike_after_s - time.monotonic(), 0)
            if not selector.select(waits):
                os.kill(victim(cluster, "prefill", "waiting")["pid"], signal.SIGKILL)
                struck_s = time.monotonic()
            elif not stream.read():
                break
    stream.socket.close()
    return stream, stream.times[0] - begin_s, struck_s and struck_s - begin_s


def main():
    parser = arguments(__doc__)
    parser.add_argument("--context", type=int, default=4096, help="tokens of each prompt (default: %(default)s)")
    parser.add_argument("--topology", default="2P1D", help="of the cluster (default: %(default)s)")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    model, rows, is_idle = model_file(DEMO), [], True
    with Cluster(model, options.topology, "--threads", str(options.threads)) as cluster:
        num_nodes = len(cluster.nodes())
        for seed in range(options.rounds):
            is_idle = wait_until_idle(options.wait) and is_idle
            tokens = random.Random(seed)
            # The second prompt is another one in its first token: nothing of it is cached.
            prompt = [tokens.randrange(1000, VOCABULARY) for _ in range(options.context)]
            _, undisturbed_s, _ = ask(cluster, model, prompt)
            other = [prompt[0] + 1, *prompt[1:]]
            stream, first_s, struck_s = ask(cluster, model, other, undisturbed_s * (0.2 + 0.6 * tokens.random()))
            wait_until_whole(cluster, num_nodes)
            expected, _, _ = ask(cluster, model, other)
            if struck_s is None or stream.tokens != expected.tokens:
                raise RuntimeError("the blow came too late" if struck_s is None else "the answer differs")
            rows.append({"undisturbed_ms": undisturbed_s * 1e3, "lost_ms": struck_s * 1e3, "ttft_ms": first_s * 1e3,
                         "late_ms": (first_s - undisturbed_s - struck_s) * 1e3})
            say(f"blow {seed + 1}: {rows[-1]['late_ms']:.0f} ms late")
    late = [row["late_ms"] for row in rows]
    report = {"work": f"{options.topology}, kill the prefill node, {options.context} prompt tokens",
              "threads": options.threads, "was_idle": is_idle, "late_ms_p50": median(late), "late_ms_max": max(late),
              "blows": rows}
    print_table(["WORK", "BLOWS", "UNDISTURBED ms", "LATE P50 ms", "MAX ms", "NOTE"],
                [[report["work"], len(rows), f"{median([row['undisturbed_ms'] for row in rows]):.0f}",
                  f"{report['late_ms_p50']:.0f}", f"{report['late_ms_max']:.0f}", "" if is_idle else "busy machine"]])
    write_report("prefill_loss", [report])


if __name__ == "__main__":
    main()
