#!/usr/bin/env python3
"""failover.py [OPTION...] : kills, or stops, a node of a running cluster while streams decode on it, and prints how
long each stream paused: from the blow to its next token. Every answer is compared, token by token, with one that
nothing disturbed."""
import contextlib, http.client, json, os, random, re, selectors, signal, socket, sys, tempfile, threading, time

from measuring import ROOT, TANDEM, arguments, median, print_table, say, wait_until_idle, write_report
from work import DEMO, model_file

sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402

VOCABULARY = 49000     # ids below this are text in the demo model
TIMEOUT_S = 600
# As the gateway and the nodes measured them, the mean of all streams: the gap is the sum of the four that follow it,
# the last two come behind its first token.
PARTS = ["gap", "detect", "control", "wait", "tail", "transfer", "first_step"]
BLOWS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def metrics_port_of(node):
    return int(re.search(r":(\d+)/", node["metrics"])[1])


class Cluster(Server):
    """`tandem up` with a state folder of its own."""

    def __init__(self, model, topology, *flags):
        super().__init__(TANDEM, model, *flags)
        self.state = tempfile.TemporaryDirectory(prefix="tandem-failover-")
        self.command[1:3] = ["up", model, "--topology", topology]
        self.num_nodes = sum(int(number or 1) for number in re.findall(r"(\d*)[PDM]", topology.upper()))

    def __enter__(self):
        os.environ["XDG_STATE_HOME"] = self.state.name
        super().__enter__()
        deadline = time.monotonic() + TIMEOUT_S
        # One that has not joined yet is not in the list.
        while [node["state"] for node in self.nodes()] != ["ready"] * self.num_nodes:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all nodes were ready after {TIMEOUT_S} s: {self.nodes()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self.state.cleanup()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def failover_parts(self):
        """{part: (how many, seconds in all)}, of all causes but planned moves, and the gap itself."""
        parts, line = {}, r"^tandem_handoff_failover_(part|gap)_seconds_(count|sum)\{(.*)\} (\S+)$"
        for kind, name, labels, value in re.findall(line, self.get("/metrics"), re.M):
            if 'cause="planned"' in labels:
                continue
            part = re.search(r'part="(\w+)"', labels)[1] if kind == "part" else "gap"
            count, total = parts.get(part, (0, 0.0))
            parts[part] = (count + int(value), total) if name == "count" else (count, total + float(value))
        return parts

    def nodes(self):
        return [node for node in json.loads(self.get("/cluster/status"))["nodes"] if node["role"] != "gateway"]


class Stream:
    """One request; remembers when its tokens came."""

    def __init__(self, port, model, prompt, num_tokens):
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0.8,
                           "seed": len(prompt) + prompt[0], "stream": True, "ignore_eos": True,
                           "return_token_ids": True}).encode()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.begin_s = time.monotonic()
        self.tokens, self.times, self.rest, self.text = [], [], b"", ""
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.socket.setblocking(False)

    def read(self):
        """False at the end."""
        data = self.socket.recv(1 << 16)
        if not data:
            return False
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                raise RuntimeError(f"a request was refused: {line.decode().strip()} {self.rest.decode()}")
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"a stream ended with an error: {event['error']}")
            for choice in event.get("choices", []):
                new = choice.get("token_ids") or []
                self.text += choice.get("text") or ""
                self.tokens += new
                self.times += [time.monotonic()] * len(new)
        return b"data: [DONE]" not in data

    def answer(self):
        return self.tokens, self.text

    def pause_after(self, blow_s):
        return next((then for then in self.times if then > blow_s), float("inf")) - blow_s


@contextlib.contextmanager
def flood(port, model, num_clients, prompt_tokens):
    """Prompts beside, one after the other from each client, which want a single token."""
    is_over = threading.Event()

    def ask(seed):
        tokens = random.Random(-seed - 1)
        while not is_over.is_set():
            prompt = [tokens.randrange(1000, VOCABULARY) for _ in range(prompt_tokens)]
            stream = Stream(port, model, prompt, 1)
            stream.socket.setblocking(True)
            while stream.read():
                pass
            stream.socket.close()

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(num_clients)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        is_over.set()
        for client in clients:
            client.join()


def run_streams(port, model, prompts, num_tokens, is_time, strike):
    """All streams to their ends; `strike` is called once, when `is_time(streams)`."""
    streams, has_struck = [], False
    with selectors.DefaultSelector() as selector:
        for prompt in prompts:
            stream = Stream(port, model, prompt, num_tokens)
            selector.register(stream.socket, selectors.EVENT_READ, stream)
            streams.append(stream)
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"no token for {TIMEOUT_S} s")
            for key, _ in ready:
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
            if not has_struck and is_time(streams):
                strike()
                has_struck = True
    for stream in streams:
        if len(stream.tokens) != num_tokens:
            raise RuntimeError(f"a stream ended after {len(stream.tokens)} of {num_tokens} tokens")
    return streams


def victim(cluster, role, work="running"):
    """The node of that role with most to do."""
    return max((node for node in cluster.nodes() if node["role"] == role), key=lambda node: node[work])


def one_blow(cluster, model, options, num_streams, seed, expected):
    tokens = random.Random(seed)
    prompts = [[tokens.randrange(1000, VOCABULARY) for _ in range(options.context)] for _ in range(num_streams)]
    blow = {}

    def strike():
        node = victim(cluster, options.victim)
        os.kill(node["pid"], BLOWS[options.blow])
        blow.update(s=time.monotonic(), pid=node["pid"])

    everyone_decodes = lambda streams: all(len(stream.tokens) >= options.before for stream in streams)  # noqa: E731
    # The first stream must still decode when the last one has begun. The undisturbed run leaves the prompts' KV in the
    # nodes' caches, so the second one begins quickly.
    total = options.before + options.after + options.reach * (num_streams - 1)
    if expected is None:
        return [stream.answer() for stream in run_streams(cluster.port, model, prompts, total, lambda _: False, None)]
    with flood(cluster.port, model, options.flood, options.flood_prompt):
        streams = run_streams(cluster.port, model, prompts, total, everyone_decodes, strike)
    if options.blow == "stop":
        os.kill(blow["pid"], signal.SIGCONT)
    wrong = sum(stream.answer() != answer for stream, answer in zip(streams, expected))
    if wrong:
        raise RuntimeError(f"{wrong} of {num_streams} streams differ from those that nothing disturbed")
    pauses = [stream.pause_after(blow["s"]) for stream in streams]
    if float("inf") in pauses:
        raise RuntimeError(f"{pauses.count(float('inf'))} of {num_streams} streams had ended before the blow: "
                           f"--reach {options.reach} is too short")
    return pauses


def wait_until_whole(cluster, num_nodes):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        nodes = cluster.nodes()
        if len(nodes) == num_nodes and all(node["state"] == "ready" and node["running"] == 0 for node in nodes):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster did not become whole again: {nodes}")
        time.sleep(0.1)


def measure(options, num_streams):
    model = model_file(DEMO)
    pauses, is_idle, parts = [], True, {}
    with Cluster(model, options.topology, "--threads", str(options.threads), *options.flag) as cluster:
        num_nodes = len(cluster.nodes())
        for seed in range(1, options.rounds + 1):
            is_idle = wait_until_idle(options.wait) and is_idle
            expected = one_blow(cluster, model, options, num_streams, seed, None)
            wait_until_whole(cluster, num_nodes)
            pauses += one_blow(cluster, model, options, num_streams, seed, expected)
            wait_until_whole(cluster, num_nodes)
            parts = cluster.failover_parts()
            say(f"{num_streams} streams, blow {seed}: {max(pauses[-num_streams:]) * 1e3:.0f} ms at most")
    pauses.sort()
    work = f"{options.topology}, {options.blow} {options.victim}, {num_streams} streams, context {options.context}, " \
           f"KV over {options.transport}"
    if options.flood:
        work += f", beside {options.flood} clients with prompts of {options.flood_prompt}"
    return {"work": work,
            "threads": options.threads, "blows": options.rounds, "pauses": len(pauses), "was_idle": is_idle,
            "p50_ms": median(pauses) * 1e3, "p99_ms": pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))] * 1e3,
            "max_ms": pauses[-1] * 1e3,
            "parts_ms": {part: total / count * 1e3 for part, (count, total) in parts.items() if count},
            "pauses_ms": [pause * 1e3 for pause in pauses]}


def main():
    parser = arguments(__doc__)
    parser.add_argument("--topology", default="2P1D", help="of the cluster (default: %(default)s)")
    parser.add_argument("--streams", default="1,4,16", help="that decode on the victim (default: %(default)s)")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each prompt (default: %(default)s)")
    parser.add_argument("--before", type=int, default=16,
                        help="tokens of each stream before the blow (default: %(default)s)")
    parser.add_argument("--after", type=int, default=32, help="and after it (default: %(default)s)")
    parser.add_argument("--reach", type=int, default=12,
                        help="more tokens of each for each other stream: so many a stream decodes while another begins "
                             "(default: %(default)s)")
    parser.add_argument("--victim", default="decode", choices=["prefill", "decode", "mixed"],
                        help="role of the node to hit (default: %(default)s)")
    parser.add_argument("--blow", default="kill", choices=sorted(BLOWS),
                        help="SIGKILL or SIGSTOP (default: %(default)s)")
    parser.add_argument("--flood", type=int, default=0,
                        help="clients that send prompts all the while (default: %(default)s)")
    parser.add_argument("--flood-prompt", type=int, default=2048, help="tokens of each (default: %(default)s)")
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp", "ucx"],
                        help="of KV between the nodes (default: %(default)s)")
    parser.add_argument("--flag", action="append", default=[], help="for `tandem up`; may be repeated")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    if options.transport != "shm":
        os.environ["TANDEM_DATA_ADDRESS"] = f"{options.transport}:127.0.0.1:0"
    rows = [measure(options, num_streams) for num_streams in map(int, options.streams.split(","))]
    print_table(["BLOW", *(name.upper() + " ms" for name in PARTS)],
                [[row["work"], *(f"{row['parts_ms'][part]:.1f}" if part in row["parts_ms"] else "-" for part in PARTS)]
                 for row in rows])
    print_table(["BLOW", "PAUSES", "P50 ms", "P99 ms", "MAX ms", "NOTE"],
                [[row["work"], row["pauses"], f"{row['p50_ms']:.0f}", f"{row['p99_ms']:.0f}", f"{row['max_ms']:.0f}",
                  "" if row["was_idle"] else "busy machine"] for row in rows])
    write_report("failover", rows)


if __name__ == "__main__":
    main()
