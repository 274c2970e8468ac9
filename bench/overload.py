#!/usr/bin/env python3
"""overload.py [OPTION...] : `tandem serve` at 1 to 10 times the load that it can serve. Clients come at a rate, each
with a deadline for its answer; who is refused comes again when it was told to, four times at most. Prints, for each
load, the answers in time per second (goodput), the share of accepted requests that were in time, and after the greatest
load how soon a quiet one is served as before."""
import random, sys, time

from clients import Call, Crowd, quantile
from measuring import ROOT, TANDEM, arguments, median, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file

sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402

TRIES = 4
VOCABULARY = 200        # ids below this are in every model
SEED = random.Random(5)


def body_of(model, options, deadline_ms):
    return {"model": model, "prompt": [SEED.randrange(10, VOCABULARY) for _ in range(options.prompt)],
            "max_tokens": options.output, "ignore_eos": True, "temperature": 0, "stream": True} | (
                {"deadline_ms": deadline_ms} if deadline_ms else {})


class Load:
    def __init__(self, crowd, server, model, options, deadline_ms):
        self.crowd, self.port, self.model, self.options = crowd, server.port, model, options
        self.deadline_ms = deadline_ms
        self.in_time = self.late = self.broken = self.refused = self.clients = 0
        self.latencies_s, self.refusal_s, self.statuses = [], [], {}

    def come(self, rate, seconds):
        moment = begin = time.monotonic()
        while True:
            moment += SEED.expovariate(rate)
            if moment > begin + seconds:
                return
            self.clients += 1
            self.crowd.at(moment, lambda: self.attempt(TRIES))

    def attempt(self, tries):
        call = Call(self.port, body_of(self.model, self.options, self.deadline_ms))
        self.crowd.start(call, lambda ended: self.on_end(ended, tries))

    def on_end(self, call, tries):
        took_s = time.monotonic() - call.begin
        self.statuses[call.status] = self.statuses.get(call.status, 0) + 1
        if call.is_served:
            self.latencies_s.append(took_s)
            is_in_time = not self.deadline_ms or took_s * 1000 <= self.deadline_ms * 1.02  # the way back included
            self.in_time += is_in_time
            self.late += not is_in_time
        elif call.status in (429, 503) and call.retry_after_s is not None and not call.first:
            self.refused += 1
            self.refusal_s.append(took_s)
            if tries > 1:
                self.crowd.at(time.monotonic() + call.retry_after_s, lambda: self.attempt(tries - 1))
        else:
            self.broken += 1

    def row(self, times):
        accepted = self.in_time + self.late + self.broken
        return {"work": f"overload x{times:g}", "clients": self.clients,
                "accepted": accepted, "in_time": self.in_time, "late": self.late, "broken": self.broken,
                "share_in_time": self.in_time / accepted if accepted else None, "refused": self.refused,
                "refusal_ms_p50": 1000 * median(self.refusal_s) if self.refusal_s else None,
                "latency_ms_p99": 1000 * quantile(self.latencies_s, 0.99) if self.latencies_s else None,
                "statuses": self.statuses}


def find_peak(server, model, options):
    """Answers per second with as many clients as the server runs at once, and how long one takes then and alone."""
    crowd, ends, alone = Crowd(), [], []
    for _ in range(5):
        crowd.start(Call(server.port, body_of(model, options, 0)),
                    lambda call: alone.append(time.monotonic() - call.begin))
        crowd.run()
    stop = time.monotonic() + options.seconds

    def again(call=None):
        if call:
            ends.append((time.monotonic(), time.monotonic() - call.begin))
        if time.monotonic() < stop:
            crowd.start(Call(server.port, body_of(model, options, 0)), again)

    for _ in range(options.sequences):
        again()
    crowd.run()
    inside = [took for moment, took in ends if moment <= stop]
    return len(inside) / options.seconds, median(inside), median(alone)


def recovery_s(server, model, options, rate, calm_s):
    """After the storm: until five quiet requests in a row take no longer than twice what they did before."""
    begin, in_row = time.monotonic(), 0
    while in_row < 5 and time.monotonic() - begin < 120:
        crowd, took = Crowd(), []
        call = Call(server.port, body_of(model, options, 0))
        crowd.start(call, lambda ended: took.append(time.monotonic() - ended.begin))
        crowd.run()
        if in_row == 0:
            first = call.begin
        in_row = in_row + 1 if call.is_served and took[0] <= 2 * calm_s else 0
        time.sleep(0.5 / rate)
    return first - begin if in_row == 5 else None


def main():
    parser = arguments(__doc__)
    parser.add_argument("--model", default=None, help="a GGUF file (default: the demo model)")
    parser.add_argument("--program", default=TANDEM, help="(default: %(default)s)")
    parser.add_argument("--loads", default="1,2,4,7,10", help="multiples of the peak (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of each load (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens (default: %(default)s)")
    parser.add_argument("--output", type=int, default=32, help="tokens (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=8, help="that run at once (default: %(default)s)")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args()
    model = options.model or str(model_file(DEMO))
    wait_until_idle(options.wait)
    flags = ["--threads", str(options.threads), "--max-num-seqs", str(options.sequences), "--log-level", "error",
             "--served-model-name", "m"]
    rows = []
    with Server(str(options.program), model, *flags) as server:
        peak, busy_s, alone_s = find_peak(server, "m", options)
        deadline_ms = 1000 * 4 * busy_s
        say(f"peak {peak:.2f} answers/s, {busy_s:.3f} s each ({alone_s:.3f} s alone); deadline {deadline_ms:.0f} ms")
        for times in map(float, options.loads.split(",")):
            crowd = Crowd()
            load = Load(crowd, server, "m", options, deadline_ms)
            load.come(times * peak, options.seconds)
            crowd.run(time.monotonic() + options.seconds)
            goodput = load.in_time / options.seconds  # what comes later, of retries, counts for nothing
            recovered = {}
            if times == max(map(float, options.loads.split(","))):
                recovered["recovery_s"] = recovery_s(server, "m", options, peak, alone_s)
            crowd.run()
            rows.append(load.row(times) | recovered | {"goodput_per_s": goodput, "peak_per_s": peak,
                                                       "deadline_ms": deadline_ms})
            say(f"x{times:g}: {rows[-1]}")
    best = max(row["goodput_per_s"] for row in rows)
    for row in rows:
        row["of_best"] = row["goodput_per_s"] / best
    print_table(["LOAD", "GOODPUT/S", "OF BEST", "IN TIME", "REFUSED", "REFUSAL MS", "P99 MS", "RECOVERY S"],
                [[row["work"], f"{row['goodput_per_s']:.2f}", f"{row['of_best']:.0%}",
                  f"{row['share_in_time']:.1%}" if row["share_in_time"] is not None else None, row["refused"],
                  f"{row['refusal_ms_p50']:.1f}" if row["refusal_ms_p50"] else None,
                  f"{row['latency_ms_p99']:.0f}" if row["latency_ms_p99"] else None,
                  f"{row['recovery_s']:.1f}" if row.get("recovery_s") is not None else None] for row in rows])
    if not options.no_report:
        write_report("overload", rows)


if __name__ == "__main__":
    main()
