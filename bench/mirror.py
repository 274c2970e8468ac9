#!/usr/bin/env python3
"""mirror.py [OPTION...] : what the copy of each decode costs: two clusters, one with mirrors and one without
(`--mirror-tokens 0`), answer the same streams in turns. Printed: the time per output token at the client, the decode
node's steps by its own clock, its processor time per token (which busy neighbours do not change), the bytes that it
sends per token, and the memory that holders pin."""
import contextlib, http.client, json, os, re, statistics

from failover import Cluster, metrics_port_of
from isolation import gaps_of, steps_of
from measuring import arguments, median, print_table, say, spread, wait_until_idle, write_report
from serving import free_port
from work import DEMO, model_file

FLAGS = {"on": [], "off": ["--mirror-tokens", "0"]}
FIGURES = {"tpot_ms": "TPOT at the client, ms", "step_ms": "step at the node, ms", "cpu_ms": "CPU per token, ms"}


def metric(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", connection.getresponse().read().decode(), re.M)
    return sum(map(float, values))


class Side:
    """A cluster, and what its decode node says of itself."""

    def __init__(self, model, options, kind):
        self.cluster = Cluster(model, options.topology, "--threads", str(options.threads), "--cluster",
                               f"mirror-{kind}", "--metrics-port", str(free_port()), *FLAGS[kind])
        self.figures = {name: [] for name in FIGURES}
        self.bytes_per_token, self.pinned_bytes = [], []

    def __enter__(self):
        self.cluster.__enter__()
        nodes = self.cluster.nodes()
        decodes = next(node for node in nodes if node["role"] != "prefill")
        self.pid, self.port = decodes["pid"], metrics_port_of(decodes)
        self.ports = [metrics_port_of(node) for node in nodes]
        return self

    def __exit__(self, *failure):
        self.cluster.__exit__(*failure)

    def cpu_s(self):
        """To the nanosecond, of the threads that live: a node's do as long as it does."""
        tasks = f"/proc/{self.pid}/task"
        return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0]) for task in os.listdir(tasks)) * 1e-9

    def play(self, model, options, seed):
        """One round; its answers."""
        steps = steps_of(self.port)
        before = steps[-1][0] if steps else 0
        cpu_s, sent = self.cpu_s(), metric(self.port, "tandem_handoff_sent_bytes_total")
        gaps, answers = gaps_of(self.cluster.port, model, options, seed)
        self.figures["tpot_ms"].append(statistics.fmean(gaps))
        self.figures["step_ms"].append(median([ms for number, ms, rows, _ in steps_of(self.port)
                                               if number > before and rows == options.streams]))
        num_tokens = options.streams * options.tokens
        self.figures["cpu_ms"].append((self.cpu_s() - cpu_s) * 1e3 / num_tokens)
        self.bytes_per_token.append((metric(self.port, "tandem_handoff_sent_bytes_total") - sent) / num_tokens)
        self.pinned_bytes.append(sum(metric(port, "tandem_handoff_most_pinned_bytes") for port in self.ports))
        return answers


def main():
    parser = arguments(__doc__)
    parser.add_argument("--topology", default="2P1D", help="of both clusters (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=4, help="that decode (default: %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="tokens of their prompts (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=300, help="that each decodes (default: %(default)s)")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    model, is_idle = model_file(DEMO), True
    with contextlib.ExitStack() as stack:
        sides = {kind: stack.enter_context(Side(model, options, kind)) for kind in FLAGS}
        for seed in range(options.rounds + 1):
            is_idle = wait_until_idle(options.wait) and is_idle
            answers = [sides[kind].play(model, options, seed) for kind in sorted(sides, reverse=seed % 2 == 0)]
            if answers[0] != answers[1]:
                raise RuntimeError("the mirror changed an answer")
            say(f"round {seed}")
    row = {"work": f"{options.topology}, {options.streams} streams, context {options.context}",
           "threads": options.threads, "was_idle": is_idle,
           "sent_bytes_per_token": {kind: median(side.bytes_per_token) for kind, side in sides.items()},
           "most_pinned_bytes": {kind: max(side.pinned_bytes) for kind, side in sides.items()}}
    table = []
    for name, title in FIGURES.items():
        on, off = (sides[kind].figures[name][1:] for kind in ("on", "off"))  # the first round opens connections
        ratios = [a / b for a, b in zip(on, off)]
        row[name] = {"on": median(on), "off": median(off), "change": median(ratios) - 1, "spread": spread(ratios)}
        table.append([title, f"{median(on):.3f}", f"{median(off):.3f}", f"{(median(ratios) - 1) * 100:+.1f}%",
                      f"{spread(ratios) * 100:.0f}%"])
    for name, title, unit in (("sent_bytes_per_token", "sent per token, kB", 1e3),
                              ("most_pinned_bytes", "pinned by holders at most, MB", 1e6)):
        table.append([title, *(f"{row[name][kind] / unit:.1f}" for kind in ("on", "off")), "", ""])
    print(row["work"] + ("" if is_idle else " (busy machine)"))
    print_table(["FIGURE", "MIRROR ON", "OFF", "CHANGE", "SPREAD"], table)
    write_report("mirror", [row])


if __name__ == "__main__":
    main()
