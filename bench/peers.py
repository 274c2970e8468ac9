#!/usr/bin/env python3
"""peers.py [OPTION...] : our engine and llama.cpp on the same files, in turns, on an idle machine. Prints a row for a
work: medians, the median of the pairs' ratios, and the part of the machine's limit that we reach. A ratio that spreads
more than the bound is inconclusive."""
from measuring import arguments, median, print_table, say, spread, wait_until_idle, write_report
from work import chosen, model_file, run_llama_cpp, run_tandem


def measure(work, options):
    threads = options.threads
    ours, theirs, is_idle = [], [], True
    model_file(work.model)
    run_tandem(work, threads, ["--no-limits"])  # packs the weights
    for pair in range(options.rounds):
        is_idle = wait_until_idle(options.wait) and is_idle
        # Who is first changes, so that a machine that gets slower or faster favours neither.
        if pair % 2 == 0:
            ours.append(run_tandem(work, threads))
        theirs.append(run_llama_cpp(work, threads))
        if pair % 2 == 1:
            ours.append(run_tandem(work, threads))
    ratios = [our["tokens_per_s"] / their for our, their in zip(ours, theirs)]
    rates = [our["tokens_per_s"] for our in ours]
    middle = sorted(ours, key=lambda our: our["limit_fraction"])[len(ours) // 2]
    return {"work": work.name, "threads": threads, "tandem": median(rates), "tandem_spread": spread(rates),
            "llama_cpp": median(theirs), "llama_cpp_spread": spread(theirs), "ratio": median(ratios),
            "ratio_spread": spread(ratios), "is_conclusive": spread(ratios) <= options.bound, "was_idle": is_idle,
            "limit_fraction": middle["limit_fraction"], "limit": middle["limit"],
            "read_gb_per_s": middle["read_gb_per_s"], "runs": {"tandem": rates, "llama_cpp": theirs}}


def table_row(row):
    notes = [] if row["is_conclusive"] else ["inconclusive"]
    notes += [] if row["was_idle"] else ["busy machine"]
    return [row["work"], f"{row['tandem']:.1f}", f"{row['llama_cpp']:.1f}", f"{row['ratio']:.2f}",
            f"{row['ratio_spread'] * 100:.0f}%", f"{row['limit_fraction'] * 100:.0f}%", row["limit"],
            f"{row['read_gb_per_s']:.1f}", ", ".join(notes) or "ok"]


TITLES = ["WORK (tokens/s)", "TANDEM", "LLAMA.CPP", "RATIO", "SPREAD", "OF LIMIT", "LIMIT", "GB/S", "VERDICT"]


def main():
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="works with this in their name")
    parser.add_argument("--bound", type=float, default=0.3, help="spread of the ratio above which it says nothing")
    options = parser.parse_args()
    rows = []
    for work in chosen(options.only):
        say(f"{work.name} ...")
        rows.append(measure(work, options))
    print_table(TITLES, map(table_row, rows))
    write_report("peers", rows)


if __name__ == "__main__":
    main()
