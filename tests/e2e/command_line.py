#!/usr/bin/env python3
"""The program as a user meets it: command_line.py TANDEM FIXTURES. Exit codes, messages, every subcommand on a tiny
model. Standard library only. Exits 1 at the first fault."""
import functools, http.client, http.server, json, os, pathlib, pty, re, select, shutil, signal, subprocess, sys
import tempfile, threading, time

TANDEM, FIXTURES = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = str(FIXTURES / "tiny" / "llama-gqa.F16.gguf")
SMALL = ["--kv-blocks", "64", "--threads", "2"]
START_TIMEOUT_S, END_TIMEOUT_S = 120, 120
scratch = tempfile.TemporaryDirectory(prefix="tandem-cli-")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")} | {"XDG_CACHE_HOME": scratch.name}


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def tandem(*args, code=0, env=None, text=None):
    done = subprocess.run([TANDEM, *args], env=ENVIRONMENT | (env or {}), input=text if text is not None else "",
                          capture_output=True, text=True, timeout=600)
    said = f"exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    check(done.returncode == code, f"tandem {' '.join(args)}: {said}")
    return done.stdout if code == 0 else done.stderr


def test_usage():
    version = tandem("--version")
    for line in (r"tandem \d+\.\d+\.\d+", r"commit \w+", r"abi \d+\.\d+", r"protocol \d+", r"packed-layout \S+"):
        check(re.search(f"^{line}$", version, re.M), f"--version has {line}: {version}")
    check("tandem run smollm2" in tandem("--help"), "the overview has an example")
    check("--max-num-seqs" in tandem("serve", "--help"), "a command has its own help")
    check("needs MODEL" in tandem("serve", code=2), "a missing argument is named")
    check("is it serve?" in tandem("sevre", code=2), "an unknown command")
    check("is it --port?" in tandem("serve", MODEL, "--prot", "1", code=2), "an unknown flag")
    check("0 to 65535" in tandem("serve", MODEL, "--port", "70000", code=2), "a value out of range")
    check("TANDEM_PORT" in tandem("serve", MODEL, code=2, env={"TANDEM_PORT": "x"}), "a bad variable is named")
    check("not a multiple of 16" in tandem("inspect", "kv", MODEL, "--block-size", "24", code=2), "a block size")
    check("no-such-model" in tandem("run", "no-such-model", "hi", code=1), "an unknown model")
    check("tandem pull smollm2" in tandem("run", "smollm2", "hi", code=1), "a model that could be pulled")
    tandem("pull", "ftp://x/y", code=2)


def test_pull_list():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(FIXTURES / "tiny"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = tandem("pull", f"http://127.0.0.1:{server.server_port}/llama-gqa.F16.gguf").strip()
        server.shutdown()
    check(pathlib.Path(path).read_bytes() == pathlib.Path(MODEL).read_bytes(), "the pulled file is whole")
    models = json.loads(tandem("list", "--json"))
    check([m["path"] for m in models] == [path], f"the pulled model is listed: {models}")
    check("llama-gqa" in tandem("list"), "the table has it too")
    check(json.loads(tandem("inspect", "model", models[0]["name"], "--json"))["path"] == path, "its name finds it")


def test_inspect():
    model = json.loads(tandem("inspect", "model", MODEL, "--json"))
    check(model["layers"] == 2 and model["vocabulary"] == 512 and model["kv_heads"] == 2, "the model's sizes")
    check("token_embd.weight" in tandem("inspect", "model", MODEL), "tensors are listed")
    dot = pathlib.Path(scratch.name) / "graph.dot"
    fused = json.loads(tandem("inspect", "graph", MODEL, "--json", "--dot", str(dot)))
    plain = json.loads(tandem("inspect", "graph", MODEL, "--json", "--passes", "none"))
    check(set(fused) == {"ops", "bytes_read_per_token", "bytes_written_per_token", "arena_bytes", "passes"}, "its keys")
    check(fused["ops"] < plain["ops"] and fused["arena_bytes"] < plain["arena_bytes"], "passes bring something")
    check(plain["passes"] == [] and "plan_memory" in fused["passes"], "the passes that ran are named")
    check("digraph" in dot.read_text(), "the dot file")
    written = {}
    for kv in ("f32", "bf16", "int8"):
        graph = json.loads(tandem("inspect", "graph", MODEL, "--json", "--kv-cache-dtype", kv))
        written[kv] = graph["bytes_written_per_token"]
    check(written["int8"] < written["bf16"] < written["f32"], f"KV is counted as it is stored: {written}")
    tandem("inspect", "graph", MODEL, "--passes", "nonsense", code=1)
    kv = json.loads(tandem("inspect", "kv", MODEL, "--kv-blocks", "8", "--json"))
    check(kv["type"] == "f32", "the type of stored keys and values")
    check(kv["blocks"] == 8 and kv["pool_tokens"] == 128 and kv["max_model_len"] == 128, f"the pool: {kv}")
    bad = pathlib.Path(scratch.name) / "bad.gguf"
    bad.write_bytes(pathlib.Path(MODEL).read_bytes()[:1000])
    check("bad.gguf" in tandem("inspect", "model", str(bad), code=1), "a truncated file is named")


def test_run():
    ask = ["run", MODEL, "--raw", "--seed", "7", "-n", "8", *SMALL]
    first = tandem(*ask, "Hello there")
    check(first.strip() and first == tandem(*ask, "Hello there"), "the same seed gives the same answer")
    check(first == tandem(*ask, text="Hello there\n"), "a prompt from a pipe is the same")
    by_variable = tandem("run", MODEL, "--raw", "-n", "8", "Hello there", *SMALL, env={"TANDEM_SEED": "7"})
    check(first == by_variable, "a variable does what the flag does")
    template = pathlib.Path(scratch.name) / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    check(tandem("run", MODEL, "hi", "--chat-template", str(template), "-n", "4", *SMALL).strip(), "with a template")
    too_long = tandem("run", MODEL, "--raw", "a b c d e f g", "--max-model-len", "3", *SMALL, code=1)
    check("takes 1 to 2" in too_long, f"a prompt without room for an answer: {too_long}")


class Terminal:
    """The program with a terminal for its three streams."""

    def __init__(self, *args):
        self.child, self.screen, self.seen = *pty.fork(), ""
        if self.child == 0:
            os.execve(TANDEM, [TANDEM, *args], ENVIRONMENT)

    def wait_for(self, text, what):
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in self.seen:
            check(time.monotonic() < deadline, f"{what}: {self.seen!r}")
            if select.select([self.screen], [], [], 1)[0]:
                self.seen += os.read(self.screen, 4096).decode(errors="replace")
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def wait_for_more(self, what):
        while not self.seen:
            check(select.select([self.screen], [], [], START_TIMEOUT_S)[0], what)
            self.seen += os.read(self.screen, 4096).decode(errors="replace")

    def type(self, text):
        os.write(self.screen, text.encode())

    def end(self):
        try:
            while os.read(self.screen, 4096):
                pass
        except OSError:
            pass  # the other side is closed
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


def test_chat():
    chat = Terminal("run", MODEL, "--seed", "1", "-n", "20", *SMALL)
    for question in ("hello", "and now?"):
        chat.wait_for("> ", "the chat asks for a line")
        chat.type(question + "\n")
        chat.wait_for("20 tokens, first after", "an answer and what it took")
    chat.wait_for("> ", "the chat asks again")
    chat.type("\x04")
    check(chat.end() == 0, "Ctrl-D ends the chat")
    # Seed 7 makes an answer of some thousand tokens, which plain loops take seconds for: time enough to break it off.
    broken_off = Terminal("run", MODEL, "--temperature", "1.5", "--seed", "7", "--kv-blocks", "128", "--threads", "1",
                          "--isa", "scalar")
    broken_off.wait_for("> ", "the chat asks for a line")
    broken_off.type("hello\n")
    broken_off.wait_for("hello\r\n", "the terminal echoes")
    broken_off.wait_for_more("the answer begins")
    broken_off.type("\x03")
    broken_off.wait_for("tokens, first after", "Ctrl-C breaks the answer off")
    broken_off.wait_for("> ", "the chat goes on")
    broken_off.type("\x04")
    check(broken_off.end() == 0, "the chat ends")
    question = Terminal("run", "smollm2", "hi")
    question.wait_for("Fetch it? [Y/n] ", "a model that could be pulled is asked about")
    question.type("n\n")
    check(question.end() == 1, "without it there is no answer")


def test_bench():
    report = json.loads(tandem("bench", "engine", MODEL, "-p", "16,40", "-n", "4", "-d", "0,16", "-b", "1,2", "-t", "2",
                               "-r", "2", "--json"))
    results = report["results"]
    check(len(results) == 2 * 2 + 2 * 2, "every combination is measured")
    check([r["kind"] for r in results] == ["prefill"] * 4 + ["decode"] * 4, "prefill, then decode")
    keys = {"kind", "prompt", "batch", "depth", "threads", "tokens_per_s", "spread", "limit_fraction", "limit"}
    check(all(keys <= set(r) and r["tokens_per_s"] > 0 for r in results), "each result is complete")
    check(all(r["limit"] in ("memory", "int8", "bf16", "f32") for r in results), "limits are named")
    check("TOKENS/S" in tandem("bench", "engine", MODEL, "-p", "16", "-n", "0", "-r", "1", "--no-limits"), "a table")
    too_long = tandem("bench", "engine", MODEL, "-p", "999999", "--no-limits", code=1)
    check("more than the model's" in too_long, f"a prompt that the model cannot take: {too_long}")
    limits = json.loads(tandem("bench", "limits", "--json", "-t", "1", "-r", "3", "--read-memory", "32MiB"))["limits"]
    check([entry["limit"] for entry in limits] == ["read", "read", "read", "memory", "int8", "bf16", "f32"],
          "reads of growing working sets, and three kinds of arithmetic")


def test_bench_random():
    gguf = os.path.join(scratch.name, "random.gguf")
    report = json.loads(tandem("bench", "engine", "--random", "smol", "--type", "q4_0", "--write-gguf", gguf,
                               "-p", "40", "-n", "4", "-b", "2", "-r", "1", "-t", "2", "--json"))
    check(report["model"]["name"] == "random smol q4_0", "the model says that it is random")
    check(report["model"]["activations"] == "int8", "and is of the type asked for")
    check(all(0 < r["limit_fraction"] < 1 and r["read_gb_per_s"] > 0 for r in report["results"]), "limits are known")
    # The file holds the same model; nothing of it is NaN, which would be an error.
    from_file = json.loads(tandem("bench", "engine", gguf, "-p", "40", "-n", "0", "-r", "1", "--no-limits",
                                  "--no-pack-cache", "--json"))
    check(from_file["model"]["weight_bytes"] == report["model"]["weight_bytes"], "the file holds the same model")
    check(from_file["results"][0]["limit_fraction"] is None, "without limits there is no part of them")
    for wrong in (("--random", "smol", MODEL), (), (MODEL, "--write-gguf", gguf)):
        tandem("bench", "engine", *wrong, code=2)


class Server:
    def __init__(self, *args, model=MODEL):
        self.process = subprocess.Popen([TANDEM, "serve", model, "--port", "0", *SMALL, *args], env=ENVIRONMENT,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        killer = threading.Timer(START_TIMEOUT_S, self.process.kill)
        killer.start()
        line = self.process.stdout.readline()
        killer.cancel()
        match = re.fullmatch(r"tandem: serving (\S+) on http://127\.0\.0\.1:(\d+)\n", line)
        check(match, f"one line says that the server listens: {line!r}")
        self.name, self.port = match[1], int(match[2])

    def open(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        return connection.getresponse()

    def end(self, *signals):
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(END_TIMEOUT_S)


LONG = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True}


def test_serve():
    server = Server("--served-model-name", "tiny")
    check(server.name == "tiny" and server.open("/health").status == 200, "the server is healthy")
    busy = tandem("serve", MODEL, "--port", str(server.port), *SMALL, code=1)
    check(str(server.port) in busy, f"a taken port is named: {busy}")
    answer = server.open("/v1/completions", LONG | {"model": "tiny", "max_tokens": 100})
    answer.readline()
    server.process.send_signal(signal.SIGTERM)
    check("[DONE]" in answer.read().decode(), "a running request ends as it should while the server drains")
    check(server.process.wait(END_TIMEOUT_S) == 0, "a drained server has done its work")
    server = Server()
    check(server.name == MODEL, "the served name is MODEL as typed")
    check(server.end(signal.SIGINT) == 0, "an idle server ends at once")
    server = Server("--drain-timeout", "0.1")
    running = server.open("/v1/completions", LONG | {"model": MODEL, "n": 16, "max_tokens": 900})
    check(server.end(signal.SIGTERM) == 0, "the drain timeout ends what still runs")
    told = running.read().decode()
    check("overloaded_error" in told and told.endswith("data: [DONE]\n\n"), f"its client is told: {told[-300:]}")
    server = Server()
    for _ in range(4):
        server.open("/v1/completions", LONG | {"model": MODEL, "n": 16, "max_tokens": 900})
    check(server.end(signal.SIGTERM, signal.SIGINT) == 1, "a second signal ends at once")


def test_defaults_of_model():
    folder = pathlib.Path(scratch.name) / "greedy"
    shutil.copytree(FIXTURES / "tiny" / "llama-gqa", folder)
    (folder / "generation_config.json").write_text('{"temperature": 0, "repetition_penalty": 1.2}')
    server = Server(model=str(folder))
    answers = [json.load(server.open("/v1/completions", {"prompt": "Hello", "max_tokens": 24})) for _ in range(2)]
    texts = [answer["choices"][0]["text"] for answer in answers]
    check(texts[0] == texts[1], f"the model says that it is greedy: {texts}")
    check(re.fullmatch(r"fp_[0-9a-f]{32}", answers[0]["system_fingerprint"]), "the fingerprint of the numerics")
    check(server.end(signal.SIGTERM) == 0, "the server ends")
    (folder / "generation_config.json").write_text('{"temperature": -1}')
    said = tandem("serve", str(folder), "--port", "0", *SMALL, code=1)
    check("generation_config.json" in said and "temperature" in said, f"a bad value is named: {said}")


def test_cache_limit():
    packed = pathlib.Path(scratch.name) / "tandem" / "packed"
    tandem("inspect", "kv", MODEL, *SMALL)
    check(len(list(packed.glob("*.pack"))) > 1, "earlier tests have packed several models")
    tandem("inspect", "kv", MODEL, *SMALL, "--cache-limit", "0")
    check(len(list(packed.glob("*.pack"))) == 1, "above the limit only what is in use stays")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("passed", name, flush=True)
