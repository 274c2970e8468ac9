#!/usr/bin/env python3
"""fairness.py [OPTION...] : short requests of one key, alone and beside another key's flood of prompts of nearly the
longest kind. Prints the times to their first token, their ratio, and what the flood gets of the machine meanwhile,
compared with what it gets alone."""
import copy, pathlib, random, sys, tempfile, time

from clients import Call, Crowd, quantile
from measuring import ROOT, TANDEM, arguments, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file

sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402

VOCABULARY = 200
SHORT_KEY, FLOOD_KEY = "sk-short-key", "sk-flood-key"
SEED = random.Random(9)


def body_of(num_prompt, num_output):
    prompt = [SEED.randrange(10, VOCABULARY) for _ in range(num_prompt)]
    return {"model": "m", "prompt": prompt, "max_tokens": num_output, "ignore_eos": True, "temperature": 0,
            "stream": True}


class Flood:
    """Keeps so many long requests open."""

    def __init__(self, crowd, port, options):
        self.crowd, self.port, self.options = crowd, port, options
        self.num_done = self.num_refused = 0
        self.is_on = True
        for _ in range(options.flood):
            self.pour()

    def pour(self):
        if self.is_on:
            call = Call(self.port, body_of(self.options.long_prompt, self.options.long_output), FLOOD_KEY)
            self.crowd.start(call, self.on_end)

    def on_end(self, call):
        self.num_done += call.is_served
        self.num_refused += not call.is_served
        if call.is_served:
            self.pour()
        else:
            self.crowd.at(time.monotonic() + (call.retry_after_s or 1), self.pour)


def shorts(crowd, port, options):
    """Times to the first token, of requests that come one after the other, with pauses."""
    ttft_s, faults = [], []
    stop = time.monotonic() + options.seconds

    def ask():
        crowd.start(Call(port, body_of(options.short_prompt, 4), SHORT_KEY), on_end)

    def on_end(call):
        (ttft_s.append(call.first - call.begin) if call.first else faults.append(bytes(call.answer[:200])))
        if time.monotonic() < stop:
            crowd.at(time.monotonic() + options.pause * SEED.uniform(0.5, 1.5), ask)

    ask()
    crowd.run(stop)
    return ttft_s, faults


def main():
    parser = arguments(__doc__)
    parser.add_argument("--model", default=None, help="a GGUF file (default: the demo model)")
    parser.add_argument("--program", default=TANDEM, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of each part (default: %(default)s)")
    parser.add_argument("--short-prompt", type=int, default=160, help="tokens (default: %(default)s)")
    parser.add_argument("--long-prompt", type=int, default=1900, help="tokens (default: %(default)s)")
    parser.add_argument("--long-output", type=int, default=64, help="tokens (default: %(default)s)")
    parser.add_argument("--flood", type=int, default=24, help="long requests open at once (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between short ones (default: %(default)s)")
    parser.add_argument("--tpot-target-ms", type=float, default=100, help="longest step wanted (default: %(default)s)")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args()
    model = options.model or str(model_file(DEMO))
    wait_until_idle(options.wait)
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys"
        keys.write_text(f"short {SHORT_KEY}\nflood {FLOOD_KEY}\n")
        keys.chmod(0o600)
        flags = ["--threads", str(options.threads), "--log-level", "error", "--served-model-name", "m",
                 "--api-key-file", str(keys), "--tpot-target-ms", str(options.tpot_target_ms), "--kv-blocks", "1024",
                 "--max-num-seqs", "16", "--max-model-len", "2048"]
        with Server(str(options.program), model, *flags) as server:
            crowd = Crowd()
            warm_up = copy.copy(options)
            warm_up.seconds = 5
            shorts(crowd, server.port, warm_up)
            crowd.run()
            idle_s, idle_faults = shorts(crowd, server.port, options)
            crowd.run()
            flood = Flood(crowd, server.port, options)
            crowd.run(time.monotonic() + 30)                       # it has taken all it can get
            begin, before = time.monotonic(), flood.num_done
            crowd.run(time.monotonic() + options.seconds)
            alone_rate = (flood.num_done - before) / (time.monotonic() - begin)
            begin, before = time.monotonic(), flood.num_done
            beside_s, beside_faults = shorts(crowd, server.port, options)
            beside_rate = (flood.num_done - before) / (time.monotonic() - begin)
            flood.is_on = False
    row = {"work": f"fairness {options.short_prompt} beside {options.flood}x{options.long_prompt}",
           "idle_ttft_ms_p50": 1000 * quantile(idle_s, 0.5), "idle_ttft_ms_p99": 1000 * quantile(idle_s, 0.99),
           "beside_ttft_ms_p50": 1000 * quantile(beside_s, 0.5), "beside_ttft_ms_p99": 1000 * quantile(beside_s, 0.99),
           "ratio_p99": quantile(beside_s, 0.99) / quantile(idle_s, 0.99), "num_idle": len(idle_s),
           "num_beside": len(beside_s), "faults": len(idle_faults) + len(beside_faults),
           "flood_alone_per_s": alone_rate, "flood_beside_per_s": beside_rate}
    say(str(row))
    print_table(["SHORT ONES", "P50 MS", "P99 MS", "REQUESTS", "FLOOD/S"],
                [["alone", f"{row['idle_ttft_ms_p50']:.0f}", f"{row['idle_ttft_ms_p99']:.0f}", len(idle_s),
                  f"{alone_rate:.2f} (without them)"],
                 ["beside", f"{row['beside_ttft_ms_p50']:.0f}", f"{row['beside_ttft_ms_p99']:.0f}", len(beside_s),
                  f"{beside_rate:.2f}"],
                 ["ratio of p99", None, f"{row['ratio_p99']:.2f}", None, None]])
    if not options.no_report:
        write_report("fairness", [row])


if __name__ == "__main__":
    main()
