#!/usr/bin/env python3
"""busy.py [OPTION...] : our engine beside no, one and two busy threads, in turns. Prints what is left as a share of our
own quiet figure."""
import contextlib, subprocess, sys

from measuring import arguments, median, print_table, say, wait_until_idle, write_report
from work import chosen, run_tandem

SPIN = "while True: pass"


@contextlib.contextmanager
def busy_threads(count):
    hogs = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait()


def measure(work, options):
    threads = options.threads
    rates = {0: [], 1: [], 2: []}
    is_idle = True
    run_tandem(work, threads, ["--no-limits"])
    for _ in range(options.rounds):
        for count, values in rates.items():
            is_idle = wait_until_idle(options.wait) and is_idle
            with busy_threads(count):
                values.append(run_tandem(work, threads, ["--no-limits"])["tokens_per_s"])
    quiet = median(rates[0])
    return {"work": work.name, "threads": threads, "quiet": quiet, "share_beside_1": median(rates[1]) / quiet,
            "share_beside_2": median(rates[2]) / quiet, "was_idle": is_idle, "runs": list(rates.values())}


def main():
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="works with this in their name")
    options = parser.parse_args()
    rows = []
    for work in chosen(options.only):
        say(f"{work.name} ...")
        rows.append(measure(work, options))
    print_table(["WORK (tokens/s)", "QUIET", "BESIDE 1", "BESIDE 2", "NOTE"],
                [[row["work"], f"{row['quiet']:.1f}", f"{row['share_beside_1'] * 100:.0f}%",
                  f"{row['share_beside_2'] * 100:.0f}%", "" if row["was_idle"] else "busy machine"] for row in rows])
    write_report("busy", rows)


if __name__ == "__main__":
    main()
