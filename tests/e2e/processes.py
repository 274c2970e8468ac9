"""Tandem's processes as tests start them: one `tandem serve`, or a cluster under `tandem up`. Standard library only."""
import atexit, http.client, json, os, pathlib, re, signal, subprocess, sys, tempfile, threading, time

START_TIMEOUT_S, END_TIMEOUT_S, ANSWER_TIMEOUT_S = 120, 60, 120
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew potions under pale moons".split()


def text_of(length, seed):
    return " ".join(WORDS[(seed * 7 + i * i) % len(WORDS)] for i in range(length))


class Place:
    """Where a test's processes run: a folder of its own for what they keep and log, and what to kill when it fails."""

    def __init__(self, program, model, flags):
        self.program, self.model, self.flags = str(program), str(model), list(flags)
        self.scratch = tempfile.TemporaryDirectory(prefix="tandem-cluster-")
        self.folder = pathlib.Path(self.scratch.name)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")} | {
            "XDG_CACHE_HOME": str(self.folder / "cache"), "XDG_STATE_HOME": str(self.folder / "state")}
        self.logs = self.folder / "state" / "tandem"
        self.running = []
        atexit.register(self.kill_all)  # whatever ends the test, an exception too

    def kill_all(self):
        for process in self.running:
            process.kill()

    def check(self, condition, what):
        if not condition:
            self.fail(what)

    def show_logs(self):
        for log in sorted(self.logs.glob("*/*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)

    def fail(self, what):
        """Ends the test, from any thread."""
        self.kill_all()
        self.show_logs()
        print(f"FAILED: {what}", file=sys.stderr, flush=True)
        os._exit(1)


class Endpoint:
    """Whatever listens and says so in one line."""

    def __init__(self, place, *args):
        self.place = place
        self.process = subprocess.Popen([place.program, *args], env=place.environment, stdout=subprocess.PIPE,
                                        text=True, stderr=open(place.folder / "stderr.log", "a"))
        place.running.append(self.process)
        self.lines, self.changed, self.port = [], threading.Condition(), None
        threading.Thread(target=self.read, daemon=True).start()
        line = self.wait_for_line(r"tandem: serving tiny on http://127\.0\.0\.1:(\d+)", START_TIMEOUT_S)
        self.port = int(line[1])

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append("(end)")
            self.changed.notify_all()

    def wait_for_line(self, pattern, timeout_s, begin=0):
        found = []

        def look():
            found[:] = [m for m in (re.fullmatch(pattern, line) for line in self.lines[begin:]) if m]
            return found or "(end)" in self.lines

        with self.changed:
            self.changed.wait_for(look, timeout_s)
        self.place.check(found, f"a line like {pattern}: {self.lines}")
        return found[0]

    def open(self, path, body=None, timeout_s=ANSWER_TIMEOUT_S):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        return connection.getresponse()

    def ask(self, request):
        response = self.open(*request)
        text = response.read().decode()
        self.place.check(response.status == 200, f"{request}: {response.status} {text}")
        answer = json.loads(text)
        usage = answer["usage"]
        return answer["choices"], usage["prompt_tokens"], usage["completion_tokens"]

    def end(self, *signals):
        for number in signals:
            self.process.send_signal(number)
        code = self.process.wait(END_TIMEOUT_S)
        self.place.running.remove(self.process)
        return code


class Serve(Endpoint):
    def __init__(self, place, *flags):
        super().__init__(place, "serve", place.model, *place.flags, *flags)


class Cluster(Endpoint):
    def __init__(self, place, topology, *flags):
        self.name = f"t{topology}"
        super().__init__(place, "up", place.model, "--topology", topology, "--cluster", self.name, *place.flags, *flags)

    def pids(self):
        """The newest process of each name, of those that were ever ready."""
        ready = (re.fullmatch(r"tandem: (\S+) is ready, pid (\d+)", line) for line in list(self.lines))
        return {m[1]: int(m[2]) for m in ready if m}

    def all_pids(self):
        ready = (re.fullmatch(r"tandem: \S+ is ready, pid (\d+)", line) for line in list(self.lines))
        return {int(m[1]) for m in ready if m}

    def kill(self, node, number=signal.SIGKILL):
        """Returns where in `lines` what follows begins."""
        begin = len(self.lines)
        os.kill(self.pids()[node], number)
        return begin

    def wait_ready(self, node, begin):
        self.wait_for_line(rf"tandem: {node} is ready, pid \d+", START_TIMEOUT_S, begin)

    def operator(self, *args, code=0):
        done = subprocess.run([self.place.program, *args, "--cluster", self.name], env=self.place.environment,
                              capture_output=True, text=True, timeout=60)
        self.place.check(done.returncode == code,
                         f"tandem {args}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout if code == 0 else done.stderr

    def status(self):
        return {node["id"]: node for node in json.loads(self.operator("status", "--json"))["nodes"]}

    def wait_status(self, is_good, what):
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_good(self.status()):
            self.place.check(time.monotonic() < deadline, f"{what}: {self.status()}")
            time.sleep(0.1)
