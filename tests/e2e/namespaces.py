#!/usr/bin/env python3
"""Two hosts, as network namespaces with one cable: namespaces.py TANDEM FIXTURES [CUTS]. A prefill node on one; a
decode node and the gateway on the other; KV over tcp: and over ucx:. Streams equal those of one process byte for byte,
also when the cable is cut and mended while they run (CUTS times, 1 by default), and nothing stays behind. Standard
library only; root; exits 77 where namespaces are not allowed."""
import concurrent.futures, json, os, pathlib, shutil, signal, subprocess, sys, threading, time

import processes
from processes import START_TIMEOUT_S, text_of

FAR, NEAR = f"tandem{os.getpid()}f", f"tandem{os.getpid()}n"
FAR_HOST, NEAR_HOST = "10.203.71.1", "10.203.71.2"
NODE_FLAGS = ["--kv-blocks", "2048", "--threads", "1", "--max-model-len", "2000"]
NUM_STREAMS, STREAM_TOKENS = 8, 800
CUTS_S = (1.0, 0.2, 7.0)  # in turn; the last outlasts every time-out of a KV connection
CABLE_MBIT = 10           # slow, so that pushes take a while


def ip(*args, **options):
    return subprocess.run(["ip", *args], capture_output=True, text=True, **options)


def skip(why):
    print(f"SKIP e2e_namespaces: {why}")
    sys.exit(77)


def make_hosts():
    if os.geteuid() != 0:
        skip("network namespaces need root")
    if not shutil.which("ip"):
        skip("no program ip (package iproute2)")
    for name in (FAR, NEAR):
        made = ip("netns", "add", name)
        if made.returncode != 0:
            skip(f"no network namespaces here: {made.stderr.strip()}")
    entered = ip("netns", "exec", FAR, "true")
    if entered.returncode != 0:
        skip(f"no way into a network namespace here: {entered.stderr.strip()}")
    made = ip("link", "add", "cable", "netns", FAR, "type", "veth", "peer", "name", "cable", "netns", NEAR)
    if made.returncode != 0:
        skip(f"no veth here: {made.stderr.strip()}")
    for name, host in ((FAR, FAR_HOST), (NEAR, NEAR_HOST)):
        ip("-n", name, "addr", "add", f"{host}/24", "dev", "cable", check=True)
        # An interface that leads nowhere, as bridges of containers do: whoever chooses by speed alone may take it.
        if ip("-n", name, "link", "add", "bridge0", "type", "dummy").returncode == 0:
            ip("-n", name, "addr", "add", f"10.203.{72 if name == FAR else 73}.1/24", "dev", "bridge0", check=True)
            ip("-n", name, "link", "set", "bridge0", "up", check=True)
        for link in ("lo", "cable"):
            ip("-n", name, "link", "set", link, "up", check=True)
        if shutil.which("tc"):
            slowed = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", "rate",
                                     f"{CABLE_MBIT}mbit", "burst", "64kb", "latency", "400ms"], capture_output=True,
                                    text=True)
            if slowed.returncode != 0:
                print(f"a fast cable: {slowed.stderr.strip()}", flush=True)


def remove_hosts():
    for name in (FAR, NEAR) if shutil.which("ip") else ():
        ip("netns", "del", name)


class TwoHosts(processes.Cluster):
    """A gateway and a decode node here, a prefill node on the far host. This process is on the near one."""

    def __init__(self, place, far, transport):
        self.name, self.far = f"two-hosts-{transport}", far
        self.nodes = {}
        for name, role, host in (("p1", "prefill", FAR_HOST), ("d1", "decode", NEAR_HOST)):
            prefix = ["ip", "netns", "exec", far] if host == FAR_HOST else []
            self.nodes[name] = subprocess.Popen(
                [*prefix, place.program, "node", place.model, "--role", role, "--name", name, "--cluster", self.name,
                 "--control-host", host, "--data-address", f"{transport}:{host}:0", *NODE_FLAGS],
                env=place.environment, stdout=subprocess.DEVNULL, stderr=open(place.folder / "stderr.log", "a"))
            place.running.append(self.nodes[name])
        processes.Endpoint.__init__(self, place, "gateway", place.model, "--cluster", self.name, "--port", "0",
                                    "--served-model-name", "tiny", "--max-model-len", "2000")
        self.wait_status(lambda nodes: all(nodes.get(name, {}).get("state") == "ready" for name in self.nodes),
                         "both nodes are ready")

    def status(self):
        return {node["id"]: node for node in json.loads(self.open("/cluster/status").read())["nodes"]}

    def set_cable(self, state):
        ip("-n", self.far, "link", "set", "cable", state, check=True)

    def wait_rest(self):
        """No request, and every block back in its pool."""
        def is_at_rest(nodes):
            return all(nodes[name]["state"] == "ready" and nodes[name]["running"] == 0 and
                       nodes[name]["kv"]["private_free"] == nodes[name]["kv"]["private_total"] and
                       nodes[name]["kv"]["shared_free"] == nodes[name]["kv"]["shared_total"] for name in self.nodes)
        self.wait_status(is_at_rest, "something is held although no request is left")

    def end_all(self):
        code = self.end(signal.SIGINT)
        for process in self.nodes.values():
            process.send_signal(signal.SIGINT)
        for process in self.nodes.values():
            code = process.wait(60) or code
            self.place.running.remove(process)
        return code


def body_of(index):
    return {"model": "tiny", "prompt": text_of(30 + 60 * index, index), "max_tokens": STREAM_TOKENS,
            "ignore_eos": True, "stream": True, "return_token_ids": True, "seed": 70 + index,
            "temperature": 0 if index % 2 == 0 else 0.8}


def stream_of(endpoint, index, has_begun):
    """The whole of one streamed answer, (text, tokens, ends), and when its first and its last token came."""
    text, tokens, ends, times = "", [], [], []
    response = endpoint.open("/v1/completions", body_of(index))
    endpoint.place.check(response.status == 200, f"stream {index} is refused: {response.status}")
    for line in response:
        line = line.decode().strip()
        if line == "data: [DONE]":
            ends.append(line)
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[6:])
        endpoint.place.check("error" not in chunk, f"stream {index} is refused: {line}")
        for choice in chunk["choices"]:
            text += choice["text"]
            tokens += choice.get("token_ids") or []
            times.append(time.monotonic())
            has_begun.set()
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    return (text, tokens, ends), (times[0], times[-1])


def streams_of(endpoint, disturb=lambda: None):
    """`disturb` is called when the first has begun."""
    has_begun = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams = [pool.submit(stream_of, endpoint, i, has_begun) for i in range(NUM_STREAMS)]
        has_begun.wait(processes.ANSWER_TIMEOUT_S)
        disturb()
        return [stream.result() for stream in streams]


def check_equal(place, what, streams, expected):
    for index, ((answer, _), reference) in enumerate(zip(streams, expected)):
        place.check(answer == reference, f"{what}: stream {index} is {len(answer[1])} tokens, {answer[2]}, not "
                                         f"{len(reference[1])}, {reference[2]}")


def cut_and_mend(hosts, cut_s, check):
    """When the first stream decodes, while others are handed over or wait for it. A cut takes some time to be made:
    where all had begun by then it is made again. Each time the answers go to `check`."""
    for _ in range(10):
        streams, firsts = cut_once(hosts, cut_s)
        check(streams)
        if firsts[-1] > 0.05:
            return
    hosts.place.fail(f"no stream had not begun at one of the cuts: {firsts}")


def cut_once(hosts, cut_s):
    cut = 0

    def disturb():
        nonlocal cut
        cut = time.monotonic()
        hosts.set_cable("down")
        time.sleep(cut_s)
        hosts.set_cable("up")

    streams = streams_of(hosts, disturb)
    hosts.place.check(any(first < cut < last for _, (first, last) in streams), "a stream was decoding at the cut")
    firsts = sorted(round(first - cut, 3) for _, (first, _) in streams)
    return streams, firsts


def inside(far, program, fixtures, num_cuts=1):
    place = processes.Place(program, pathlib.Path(fixtures) / "tiny" / "llama-gqa.F16.gguf",
                            ["--port", "0", "--served-model-name", "tiny", *NODE_FLAGS])
    one = processes.Serve(place)
    expected = [answer for answer, _ in streams_of(one)]
    place.check(one.end(signal.SIGTERM) == 0, "the one process ends")
    for transport in ("tcp", "ucx"):
        began = time.monotonic()
        hosts = TwoHosts(place, far, transport)
        check_equal(place, f"{transport}, undisturbed", streams_of(hosts), expected)
        hosts.wait_rest()
        for number in range(int(num_cuts)):
            cut_s = CUTS_S[number % len(CUTS_S)]

            def check(streams, what=f"{transport}, cut for {cut_s} s"):
                check_equal(place, what, streams, expected)
                hosts.wait_rest()

            cut_and_mend(hosts, cut_s, check)
            print(f"{transport}: cut for {cut_s} s after {time.monotonic() - began:.1f} s", flush=True)
        place.check(hosts.end_all() == 0, f"{transport}: all end when they are told to")
        print(f"passed {transport} in {time.monotonic() - began:.1f} s", flush=True)


def main():
    if sys.argv[1] == "--inside":
        return inside(*sys.argv[2:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are removed
    try:
        make_hosts()
        command = ["ip", "netns", "exec", NEAR, sys.executable, __file__, "--inside", FAR, *sys.argv[1:]]
        return subprocess.run(command).returncode
    finally:
        remove_hosts()


sys.exit(main())
