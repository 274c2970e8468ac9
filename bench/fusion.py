#!/usr/bin/env python3
"""fusion.py [OPTION...] : decode with the graph's passes on and off, in turns, at batch 1 and 32 and depth 0: time of a
step, and bytes of activations that ops pass to each other per token (weights and KV apart)."""
from measuring import arguments, median, print_table, say, spread, wait_until_idle, write_report
from work import Work, run_tandem


def measure(work, options):
    threads = options.threads
    runs = {"all": [], "none": []}
    is_idle = True
    for passes in runs:
        run_tandem(work, threads, ["--no-limits", "--passes", passes])  # packs the weights
    for round_index in range(options.rounds):
        is_idle = wait_until_idle(options.wait) and is_idle
        for passes in ("all", "none") if round_index % 2 == 0 else ("none", "all"):
            runs[passes].append(run_tandem(work, threads, ["--no-limits", "--passes", passes]))
    step_ms = {name: [1e3 * work.batch / run["tokens_per_s"] for run in runs[name]] for name in runs}
    ratios = [on / off for on, off in zip(step_ms["all"], step_ms["none"])]
    bytes_moved = {name: runs[name][0]["model"]["activation_bytes_per_token"] for name in runs}
    return {"work": work.name, "batch": work.batch, "threads": threads, "was_idle": is_idle,
            "step_ms_on": median(step_ms["all"]), "step_ms_off": median(step_ms["none"]),
            "time_change": median(ratios) - 1, "time_spread": spread(ratios), "activation_bytes_on": bytes_moved["all"],
            "activation_bytes_off": bytes_moved["none"],
            "bytes_change": bytes_moved["all"] / bytes_moved["none"] - 1}


def main():
    parser = arguments(__doc__)
    parser.add_argument("--model", default="demo", help='demo, or random weights such as "smol q8_0"')
    options = parser.parse_args()
    rows = []
    for batch in (1, 32):
        work = Work(options.model, generated=32, batch=batch)
        say(f"{work.name} ...")
        rows.append(measure(work, options))
    print_table(["WORK", "ms/STEP ON", "OFF", "CHANGE", "SPREAD", "BYTES/TOKEN ON", "OFF", "CHANGE", "NOTE"],
                [[row["work"], f"{row['step_ms_on']:.3f}", f"{row['step_ms_off']:.3f}",
                  f"{row['time_change'] * 100:+.1f}%", f"{row['time_spread'] * 100:.0f}%", row["activation_bytes_on"],
                  row["activation_bytes_off"], f"{row['bytes_change'] * 100:+.1f}%",
                  "" if row["was_idle"] else "busy machine"] for row in rows])
    write_report("fusion", rows)


if __name__ == "__main__":
    main()
