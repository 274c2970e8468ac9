"""Two modes of the soak: blows against nodes at random points of streams, and equality over topologies."""
import collections, random, signal, threading, time

from processes import Cluster, Serve
from faults import Blow, Nodes, Watch
from load import Load, expected_answers, in_threads, results, roles_of, say
from work import TRY_AGAIN, Again, Client, Draw, Fault, Tally, answered, pool

NUM_STREAMS, STREAM_TOKENS, NUM_SHORT_CLIENTS = 6, 400, 3
LEAST_READY = 3     # nodes, before the next blow: pauses between restarts of a node that is hit often grow
CAUSES = ("kill", "stop", "stop and go on")


def stream_requests(seed):
    draw = Draw(seed, 16, 1500)
    return [("/v1/completions", {"model": "tiny", "prompt": draw.prompt(), "max_tokens": STREAM_TOKENS, "stream": True,
                                 "ignore_eos": True, "return_token_ids": True, "seed": seed + index,
                                 "temperature": 0 if index % 2 == 0 else 0.8}) for index in range(NUM_STREAMS)]


class Streams:
    """All streams of a blow at once. They are asked again only when they are refused; once begun they survive."""

    def __init__(self, port, requests, expected, tally):
        self.requests, self.expected, self.tally, self.port = requests, expected, tally, port
        self.counts = [0] * len(requests)
        self.threads = [threading.Thread(target=self.run, args=(index,), daemon=True)
                        for index in range(len(requests))]
        for thread in self.threads:
            thread.start()

    def run(self, index):
        client = Client(self.port)

        def on_token(assembly):
            self.counts[index] = assembly.num_tokens()

        try:
            answer = client.ask_until_answered(self.requests[index], self.tally.count_again, TRY_AGAIN, on_token)
        except Exception as fault:  # an answer that cannot be read, too
            return self.tally.count("lost", f"a stream after {self.counts[index]} tokens: {fault!r}")
        finally:
            client.close()
        self.tally.add_pause(client.pause_s)
        if answer != self.expected[index]:
            return self.tally.count("wrong", f"a stream\nis  {answer}\nnot {self.expected[index]}")
        self.tally.count("whole streams")

    def wait_for(self, num_tokens):
        """Until the streams together have so many; False if they ended before."""
        while sum(self.counts) < num_tokens:
            if not any(thread.is_alive() for thread in self.threads):
                return False
            time.sleep(0.001)
        return True

    def join(self):
        for thread in self.threads:
            thread.join()


def strike(nodes, chance, done):
    """Returns what ends the blow, or None if no node of the wanted role is ready."""
    role = chance.choice(sorted(set(nodes.roles.values())))
    ready = [node for node in nodes.ready() if node["role"] == role]
    if not ready:
        return None
    node = max(ready, key=lambda node: node["running"] + chance.random()) if chance.random() < 0.7 else \
        chance.choice(ready)
    blow, cause = Blow(node["pid"]), chance.choice(CAUSES)
    blow.send(signal.SIGKILL if cause == "kill" else signal.SIGSTOP)
    done[f"{cause}, {role}"] += 1
    if cause != "stop and go on":
        return lambda: None  # `up` ends what stays silent
    timer = threading.Timer(chance.uniform(0.05, 4), lambda: blow.send(signal.SIGCONT))
    timer.start()
    return timer.join


def blows(place, options):
    chance = random.Random(options.seed)
    short = pool(options.pool, options.seed, (4, 200), 24)
    batches = [stream_requests(options.seed + 100 * i) for i in range(8)]
    say(f"seed {options.seed}; expected answers ...")
    expected_short = expected_answers(place, short)
    expected = [expected_answers(place, batch) for batch in batches]
    cluster = Cluster(place, options.topology, *options.flag)
    nodes = Nodes(cluster, roles_of(options.topology), say)
    nodes.wait_whole()
    watch, tally, done, begin_s = Watch(cluster), Tally(), collections.Counter(), time.monotonic()
    while sum(done.values()) < options.blows and tally.num_bad() == 0:
        nodes.wait(lambda status: sum(node["state"] == "ready" for node in status.values()) >= LEAST_READY and
                   can_serve(status), 180, "too few nodes are ready")
        index = chance.randrange(len(batches))
        load = Load(cluster.port, short, expected_short, tally, NUM_SHORT_CLIENTS, chance.randrange(1 << 30), 1 << 60)
        streams = Streams(cluster.port, batches[index], expected[index], tally)
        # Half of the blows while prompts are computed or handed over, half anywhere.
        all_tokens = NUM_STREAMS * STREAM_TOKENS
        time.sleep(chance.uniform(0, 0.1))
        streams.wait_for(chance.choice([0, chance.randrange(all_tokens * 9 // 10)]))
        end_blow = strike(nodes, chance, done)
        streams.join()
        load.end()
        if end_blow is not None:
            end_blow()
        nodes.wait_rest(are_all_needed=False)
        if sum(done.values()) % 10 == 0:
            say(f"{sum(done.values())} blows, {tally.num_done()} answers, {tally.num_bad()} wrong or lost, "
                f"{time.monotonic() - begin_s:.0f} s")
    nodes.wait_whole()
    nodes.wait_rest()
    watch.look()
    place.check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends the cluster")
    return {"mode": "blows", "topology": options.topology, "seconds": round(time.monotonic() - begin_s, 1)} | \
        results(tally, done, watch)


def can_serve(status):
    roles = {node["role"] for node in status.values() if node["state"] == "ready"}
    return "mixed" in roles or {"prefill", "decode"} <= roles


TOPOLOGIES = ("1P1D", "2P1D", "2P2D", "3M")


def equality(place, options):
    """Every topology answers as one process does, with and without prefix cache and mirror."""
    requests = pool(options.requests_equal, options.seed, (16, 4096), 48)
    prompt_tokens = sum(len(body.get("prompt", "")) for _, body in requests)
    say(f"seed {options.seed}; {len(requests)} requests, about {prompt_tokens} prompt tokens")
    expected = expected_answers(place, requests)
    begin_s, tally, totals, rows = time.monotonic(), Tally(), collections.Counter(), {}

    def compare(name, start):
        start_s, bad = time.monotonic(), tally.num_bad()
        endpoint = start()
        indices = iter(range(len(requests)))

        def run():
            client = Client(endpoint.port)
            for index in indices:
                answered(client, requests[index], expected[index], tally)
            client.close()

        in_threads(options.clients, run)
        if isinstance(endpoint, Cluster):
            watch = Watch(endpoint)
            watch.look()
            totals.update(watch.totals())
            nodes = Nodes(endpoint, roles_of(name.split()[0]), say)
            nodes.wait_rest()
            watch.is_over.set()
        place.check(endpoint.end(signal.SIGTERM) == 0, f"{name} ends")
        rows[name] = f"{time.monotonic() - start_s:.0f} s, {tally.num_bad() - bad} differ"
        say(f"{name}: {len(requests)} requests, {rows[name]}")

    compare("one process, no prefix cache", lambda: Serve(place, "--no-enable-prefix-caching"))
    for topology in TOPOLOGIES:
        for cache in ((), ("--no-enable-prefix-caching",)):
            for mirror in ((), ("--mirror-tokens", "0")):
                name = f"{topology} {'no ' if cache else ''}prefix cache, {'no ' if mirror else ''}mirror"
                compare(name, lambda: Cluster(place, topology, *cache, *mirror))  # noqa: B023

    class Sums:
        def totals(self):
            return dict(totals)

    return {"mode": "equality", "requests_each": len(requests), "prompt_tokens": prompt_tokens,
            "seconds": round(time.monotonic() - begin_s, 1), "runs": rows} | results(tally, {}, Sums())
