"""What the comparisons of this folder share: waiting for an idle machine, medians of interleaved runs, and reports."""
import argparse, json, os, pathlib, signal, statistics, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TANDEM = str(ROOT / "build" / "release" / "tandem")
RESULTS = ROOT / "build" / "bench"
BUSY_SHARE = 0.10      # of all cores, used by others: above it a measurement waits
RUN_TIMEOUT_S = 900


class RunAhead(argparse.Action):
    """Puts this process and what it starts in front of all others. Linux weighs sessions first, then the processes of
    each: so a session of its own, and both priorities. The measured programs stay equal among each other."""

    def __call__(self, parser, options, values, option_string=None):
        try:
            if os.getpid() == os.getpgid(0) and (child := os.fork()):  # a group's leader cannot begin a session
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda number, frame: os.kill(child, number))
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os.setsid()
            os.nice(-20)
            pathlib.Path("/proc/self/autogroup").write_text("-20")
        except PermissionError:
            parser.error("--ahead needs root")
        except FileNotFoundError:
            pass  # a kernel that does not weigh sessions


def arguments(description, rounds=5):
    """The options that all comparisons have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="runs of each kind, in turns (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of the engines (default: %(default)s)")
    parser.add_argument("--wait", type=float, default=120,
                        help="seconds to wait for an idle machine before each run; then it runs all the same, and is "
                             "marked (default: %(default)s)")
    parser.add_argument("--ahead", action=RunAhead, nargs=0, help="run in front of other processes (root only)")
    return parser


def cpu_seconds():
    """Seconds that all cores have worked since boot, time taken by the hypervisor included."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def busy_share(seconds=0.5):
    """The part of all cores that is in use while this process sleeps."""
    begin, begin_s = cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds() - begin) / ((time.monotonic() - begin_s) * os.cpu_count())


def wait_until_idle(wait_s):
    """True once the machine is idle; False when it was not within the time."""
    deadline = time.monotonic() + wait_s
    while busy_share() > BUSY_SHARE:
        if time.monotonic() > deadline:
            return False
    return True


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def median(values):
    return statistics.median(values)


def spread(values):
    """(largest - smallest) / median."""
    return (max(values) - min(values)) / median(values)


def machine():
    name = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {"cpu": name, "cores": len(os.sched_getaffinity(0))}


def write_report(name, rows):
    """Puts the rows into build/bench/NAME.json in place of those of the same `work`; keeps the others."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    kept = {row["work"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    commit = run([TANDEM, "--version"]).split("commit ")[1].split("\n")[0]
    for row in rows:
        kept[row["work"]] = row | {"commit": commit, "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    path.write_text(json.dumps({"machine": machine(), "rows": list(kept.values())}, indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")


def print_table(titles, rows):
    """The first column to the left, the others to the right."""
    texts = [list(map(str, titles))] + [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(titles))]
    for row in texts:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells).rstrip(), flush=True)


def say(text):
    print(text, file=sys.stderr, flush=True)
