#!/usr/bin/env python3
"""soak.py [OPTION...] : many short requests to a cluster of processes while its nodes are killed, stopped, drained and
given other roles. Every answer is compared, byte for byte, with that of one `tandem serve`; at the end nothing may be
wrong, lost or held. --blows and --requests-equal are two more modes. Standard library only; exits 1 if it failed."""
import argparse, json, os, pathlib, random, signal, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from processes import Cluster, Place  # noqa: E402

from faults import Faults, Nodes, Watch  # noqa: E402
from load import FLAGS, Load, expected_answers, long_model, neighbours, results, roles_of, say  # noqa: E402
from modes import blows, equality  # noqa: E402
from work import Tally, pool  # noqa: E402


def progress(load, tally, faults, watch, deadline):
    """Until the load is over; a line every ten seconds."""
    while not load.is_over.wait(max(min(10, deadline - time.monotonic()), 0)):
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(tally.outcomes.items()))
        say(f"{tally.num_done()} answers ({outcomes}), {sum(faults.done.values())} faults, "
            f"{watch.totals().get('tandem_token_mismatch_total', 0)} mismatches")
        if time.monotonic() > deadline or tally.num_bad() > 20:
            load.is_over.set()


def inject(place, faults, load, per_minute, chance):
    while not load.is_over.wait(60 / per_minute * chance.uniform(0.5, 1.5)):
        try:
            faults.one()
        except Exception as fault:
            place.fail(f"a fault could not be made: {fault!r}")


def soak(place, options):
    requests = pool(options.pool, options.seed, (4, 200), 24)
    say(f"seed {options.seed}; expected answers of {len(requests)} requests ...")
    expected = expected_answers(place, requests)
    cluster = Cluster(place, options.topology, *options.flag)
    nodes = Nodes(cluster, roles_of(options.topology), say)
    nodes.wait_whole()
    watch, tally, chance = Watch(cluster), Tally(), random.Random(options.seed)
    faults = Faults(nodes, chance, say)
    start_s = time.monotonic()
    with neighbours(options.beside):
        load = Load(cluster.port, requests, expected, tally, options.clients, options.seed, options.requests)
        if options.faults > 0:
            injector = threading.Thread(target=inject, args=(place, faults, load, options.faults, chance), daemon=True)
            injector.start()
        progress(load, tally, faults, watch, start_s + 60 * options.minutes)
        load.end()
        if options.faults > 0:
            injector.join()
    seconds = time.monotonic() - start_s
    nodes.wait_whole()
    nodes.wait_rest()
    watch.look()
    nodes.end()
    place.check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends the cluster")
    return {"mode": "soak", "topology": options.topology, "seconds": round(seconds, 1), "beside": options.beside,
            "pool": len(requests), "clients": options.clients} | results(tally, faults.done, watch)


def show(report):
    for name, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number}" for key, number in value.items()) or "none"
        print(f"{name:18} {value}")
    print(json.dumps(report), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=os.path.abspath, default=str(ROOT / "build" / "release" / "tandem"))
    parser.add_argument("--fixtures", type=lambda path: pathlib.Path(path).absolute(),
                        default=ROOT / "build" / "fixtures")
    parser.add_argument("--topology", default="2P2D1M", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=30, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=1 << 60, help="end after so many (default: by time only)")
    parser.add_argument("--clients", type=int, default=12, help="threads that ask (default: %(default)s)")
    parser.add_argument("--pool", type=int, default=400, help="distinct requests (default: %(default)s)")
    parser.add_argument("--faults", type=float, default=1, help="a minute (default: %(default)s)")
    parser.add_argument("--beside", type=int, default=0, help="memory-bound neighbours (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="default: another one each run")
    parser.add_argument("--flag", action="append", default=[], help="for `tandem up`; may be repeated")
    parser.add_argument("--blows", type=int, default=0,
                        help="so many kills and stops of nodes, each while streams run; they are compared too")
    parser.add_argument("--requests-equal", type=int, default=0,
                        help="so many requests of 16 to 4096 prompt tokens over one process and every topology, prefix "
                             "cache on and off, mirror on and off")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-soak-") as folder:
        place = Place(options.program, long_model(options.fixtures, folder), FLAGS)
        run = blows if options.blows else equality if options.requests_equal else soak
        report = run(place, options)
        is_good = report["requests"] > 0 and report["wrong"] == report["lost"] == 0 and \
            report["metrics"].get("tandem_token_mismatch_total", 0) == 0
        if not is_good:
            place.show_logs()
    show(report)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
