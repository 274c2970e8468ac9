"""What a soak does to a cluster's processes, and how it looks at them."""
import collections, http.client, json, os, re, signal, subprocess, threading, time

WHOLE_TIMEOUT_S = 180   # until all nodes are ready again
REST_TIMEOUT_S = 60     # until nothing is held
KINDS = {"kill": 4, "stop": 4, "gateway": 1, "drain": 1, "role": 1}  # weights


class Watch(threading.Thread):
    """Reads the gateway's metrics every second. A gateway that is started again counts from nothing: what the one
    before it had counted is kept."""
    COUNTERS = ("tandem_token_mismatch_total", "tandem_handoff_suspicions_total", "tandem_handoff_attempts_total",
                "tandem_handoff_stale_total")

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.is_over = cluster, threading.Event()
        self.kept, self.newest, self.lock = collections.Counter(), {}, threading.Lock()
        self.start()

    def run(self):
        while not self.is_over.wait(1):
            self.look()

    def look(self):
        try:
            text = self.cluster.open("/metrics", timeout_s=20).read().decode()
        except (OSError, http.client.HTTPException):
            return False
        seen = {name: float(value) for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.M)
                if name.split("{")[0] in self.COUNTERS}
        with self.lock:
            if any(seen.get(name, 0) < value for name, value in self.newest.items()):
                self.kept.update(self.newest)
            self.newest = seen
        return True

    def totals(self):
        """Of all gateways together; of those that died, as they were a second before at most."""
        with self.lock:
            sums = collections.Counter(self.kept)
            sums.update(self.newest)
        return {name: int(value) for name, value in sorted(sums.items())}


class Nodes:
    """A cluster's nodes: those that `up` looks after, and the stand-ins of those that were drained."""

    def __init__(self, cluster, roles, say):
        self.cluster, self.roles, self.say = cluster, roles, say
        self.names = sorted(roles)
        self.stand_ins, self.lock = {}, threading.Lock()

    def status(self):
        """By name; empty while no gateway answers."""
        try:
            response = self.cluster.open("/cluster/status", timeout_s=20)
            if response.status != 200:
                return {}
            nodes = json.loads(response.read())["nodes"]
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return {node["id"]: node for node in nodes if node["id"] in self.roles}

    def ready(self):
        return [node for node in self.status().values() if node["state"] == "ready"]

    def wait(self, is_good, timeout_s, what):
        deadline = time.monotonic() + timeout_s
        while not is_good(self.status()):
            if time.monotonic() > deadline:
                self.cluster.place.fail(f"{what}: {self.status()}\n{self.cluster.lines[-20:]}")
            time.sleep(0.1)

    def wait_whole(self):
        self.wait(lambda nodes: len(nodes) == len(self.names) and all(n["state"] == "ready" for n in nodes.values()),
                  WHOLE_TIMEOUT_S, "not all nodes are ready again")

    def wait_rest(self, are_all_needed=True):
        """Nothing runs, nothing waits and no private block is held, on any node that is ready."""
        def is_at_rest(nodes):
            ready = [node for node in nodes.values() if node["state"] == "ready" and node["kv"]["private_total"]]
            return (len(ready) == len(self.names) or not are_all_needed) and ready and all(
                node["running"] == node["waiting"] == 0 and
                node["kv"]["private_free"] == node["kv"]["private_total"] for node in ready)

        self.wait(is_at_rest, REST_TIMEOUT_S, "something is held although no request is left")

    def start_stand_in(self, name):
        place = self.cluster.place
        flags = [flag for flag in place.flags]
        at = flags.index("--served-model-name")
        del flags[at:at + 2]
        at = flags.index("--port")
        del flags[at:at + 2]
        log = open(place.logs / self.cluster.name / f"{name}.stand-in.log", "a")
        process = subprocess.Popen([place.program, "node", place.model, "--name", name, "--role", self.roles[name],
                                    "--cluster", self.cluster.name, *flags], env=place.environment, stdout=log,
                                   stderr=log)
        place.running.append(process)
        threading.Thread(target=self.look_after, args=(name, process), daemon=True).start()
        with self.lock:
            self.stand_ins[name] = process

    def look_after(self, name, process):
        """As `up` does: what dies is started again, what leaves is not."""
        if process.wait() != 0 and process in self.cluster.place.running:
            self.cluster.place.running.remove(process)
            self.start_stand_in(name)

    def end(self):
        with self.lock:
            stand_ins, self.stand_ins = self.stand_ins, {}
        for process in stand_ins.values():
            if process in self.cluster.place.running:
                self.cluster.place.running.remove(process)
            process.kill()
            process.wait()


class Blow:
    """A signal to one process, that cannot meet another one with the same number."""

    def __init__(self, pid):
        self.handle = os.pidfd_open(pid)

    def send(self, number):
        try:
            signal.pidfd_send_signal(self.handle, number)
        except ProcessLookupError:
            pass


class Faults:
    """Chance, and what it does."""

    def __init__(self, nodes, random, say):
        self.nodes, self.random, self.say = nodes, random, say
        self.done = collections.Counter()

    def post(self, path, body=None):
        response = self.nodes.cluster.open(path, body or {})
        return response.status, response.read().decode()

    def has_peer(self, node):
        """Another ready node can do what this one does."""
        return sum(other["role"] in (node["role"], "mixed") for other in self.nodes.ready()) > 1

    def one(self):
        """A fault of some kind that is possible now, and its consequences; returns when all nodes are ready again."""
        kinds = list(KINDS)
        while True:
            kind = self.random.choices(kinds, [KINDS[kind] for kind in kinds])[0]
            victims = [node for node in self.nodes.ready() if self.has_peer(node)]
            if victims and getattr(self, kind)(self.random.choice(victims)):
                break
            time.sleep(0.2)
        self.nodes.wait_whole()

    def kill(self, node):
        self.say(f"kill -9 of {node['id']} ({node['role']})")
        Blow(node["pid"]).send(signal.SIGKILL)
        self.done[f"kill {node['role']}"] += 1
        return True

    def stop(self, node):
        """Beyond 5 s, whoever looks after the node ends it."""
        seconds = self.random.choice([0.1, 0.4, 1, 3, 8]) * self.random.uniform(0.5, 1)
        self.say(f"SIGSTOP of {node['id']} ({node['role']}) for {seconds:.2f} s")
        blow = Blow(node["pid"])
        blow.send(signal.SIGSTOP)
        time.sleep(seconds)
        blow.send(signal.SIGCONT)
        self.done[f"stop {node['role']}"] += 1
        return True

    def gateway(self, _):
        self.say("kill -9 of the gateway")
        begin = self.nodes.cluster.kill("gateway")
        self.nodes.cluster.wait_ready("gateway", begin)
        self.done["kill gateway"] += 1
        return True

    def drain(self, node):
        name = node["id"]
        self.say(f"drain of {name} ({node['role']}), then a stand-in of its name")
        status, text = self.post(f"/cluster/nodes/{name}/drain")
        if status != 200:
            self.say(f"refused: {text}")
            return False
        deadline = time.monotonic() + WHOLE_TIMEOUT_S
        while os.path.exists(f"/proc/{node['pid']}") and not is_zombie(node["pid"]):
            if time.monotonic() > deadline:
                self.nodes.cluster.place.fail(f"{name} does not leave")
            time.sleep(0.1)
        self.nodes.start_stand_in(name)
        self.done["drain"] += 1
        return True

    def role(self, node):
        if node["role"] == "mixed":
            return False
        other = "decode" if node["role"] == "prefill" else "prefill"
        self.say(f"{node['id']} becomes {other} for a while")
        for role in (other, node["role"]):
            deadline = time.monotonic() + WHOLE_TIMEOUT_S
            while True:
                status, text = self.post(f"/cluster/nodes/{node['id']}/role", {"role": role})
                if status == 200:
                    break
                if role == other:
                    self.say(f"refused: {text}")
                    return False
                if time.monotonic() > deadline:
                    self.nodes.cluster.place.fail(f"{node['id']} does not get its role back: {text}")
                time.sleep(0.5)
            time.sleep(self.random.uniform(1, 5))
        self.done["role flip"] += 1
        return True


def is_zombie(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
