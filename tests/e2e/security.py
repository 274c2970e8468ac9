#!/usr/bin/env python3
"""What a server keeps from strangers: security.py TANDEM FIXTURES. Keys from a file, TLS, pages of other origins, and
that no prompt is ever logged, by one process or by any process of a cluster. Standard library, openssl, and curl where
there is one. Exits 1 at the first fault."""
import http.client, json, os, pathlib, shutil, ssl, subprocess, sys, time, warnings

import processes

WORD = "Zyzzogeton"  # in every prompt, and nowhere else
KEY, OTHER_KEY = "sk-alice-0123456789", "sk-bob-0123456789"
MODEL = pathlib.Path(sys.argv[2]) / "tiny" / "llama-gqa.F16.gguf"
FLAGS = ["--port", "0", "--served-model-name", "tiny", "--kv-blocks", "512", "--threads", "1",
         "--max-model-len", "2000"]
place = processes.Place(sys.argv[1], MODEL, FLAGS)
check = place.check


def key_file(mode):
    path = place.folder / "keys"
    path.write_text(f"# for this test\nalice {KEY} weight=2\nbob {OTHER_KEY} max-concurrent=1\n")
    path.chmod(mode)
    return str(path)


def certificate():
    crt, key = str(place.folder / "server.crt"), str(place.folder / "server.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", key, "-out", crt, "-days", "2", "-subj", "/CN=x",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    os.chmod(key, 0o600)
    return crt, key


def log_of_serve():
    return (place.folder / "stderr.log").read_text(errors="replace")


class Endpoint:
    """Of either kind of server, with or without TLS."""

    def __init__(self, port, tls=None, key=KEY):
        self.port, self.tls, self.key = port, tls, key

    def call(self, method, path, body=None, headers=None):
        if self.tls:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.tls)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        keyed = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        connection.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body),
                           keyed | (headers or {}))
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode(errors="replace")


def bad_and_good(endpoint):
    """Requests with the word in every place that has text, most of them wrong."""
    said = [{"role": "user", "content": WORD}]
    cases = [
        ("/v1/completions", {"model": "tiny", "prompt": WORD, "max_tokens": 4}, 200),
        ("/v1/completions", {"model": "tiny", "prompt": WORD, "max_tokens": 4, "stream": True}, 200),
        ("/v1/completions", {"model": "tiny", "prompt": WORD, "max_tokens": 4, "echo": True, "logprobs": 1,
                             "stop": [WORD]}, None),
        ("/v1/chat/completions", {"model": "tiny", "messages": said, "max_tokens": 4}, None),
        ("/v1/chat/completions", {"model": "tiny", "messages": said, "max_tokens": 4, "stream": True}, None),
        ("/v1/completions", {"model": "tiny", "prompt": WORD * 3000}, 400),            # too long
        ("/v1/completions", {"model": WORD, "prompt": WORD}, 404),
        ("/v1/completions", {"model": "../../etc/passwd", "prompt": WORD}, 404),
        ("/v1/completions", {"model": "tiny", "prompt": WORD, "temperature": WORD}, 400),
        ("/v1/completions", {"model": "tiny", "prompt": {WORD: WORD}}, 400),
        ("/v1/completions", {"model": "tiny", "prompt": WORD, WORD: WORD, "max_tokens": 2}, 200),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": WORD, "content": WORD}]}, None),
        ("/v1/chat/completions", {"model": "tiny", "messages": said, "chat_template": WORD}, 400),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:1/{WORD}"}}]}]}, 400),
        ("/v1/completions", ('{"prompt": "' + WORD).encode(), 400),                     # no JSON
        ("/v1/completions", b'{"prompt": "' + WORD.encode() + b'\xff"}', 400),          # no UTF-8
        ("/v1/completions", {"model": "tiny", "prompt": WORD, "deadline_ms": 0.001}, 429),
        ("/tokenize", {"model": "tiny", "prompt": WORD}, 200),
        (f"/v1/{WORD}", {"prompt": WORD}, 404),
    ]
    for path, body, status in cases:
        got, _, text = endpoint.call("POST", path, body)
        check(status in (None, got), f"{path} {body}: {got} {text}")
    # A client that leaves in the middle.
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(
        {"model": "tiny", "prompt": WORD, "max_tokens": 500, "ignore_eos": True, "stream": True}),
        {"Authorization": f"Bearer {endpoint.key}"})
    connection.getresponse().read(10)
    connection.close()


def test_serve():
    path = key_file(0o644)
    server = processes.Serve(place, "--api-key-file", path, "--log-level", "debug", "--cors-origin",
                             "https://chat.example")
    check("others on this machine can read a file with a key" in log_of_serve(), "open key files are warned about")
    endpoint = Endpoint(server.port)
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
    for key, status in ((None, 401), ("wrong", 401), (KEY, 200), (OTHER_KEY, 200)):
        check(Endpoint(server.port, key=key).call("POST", "/v1/completions", body)[0] == status, f"key {key}")
    status, _, _ = Endpoint(server.port, key=None).call("POST", "/v1/completions", body, {"X-Api-Key": KEY})
    check(status == 200, "the other header works too")
    for path in ("/health", "/metrics"):
        check(Endpoint(server.port, key=None).call("GET", path)[0] == 200, f"{path} needs no key")
    check(Endpoint(server.port, key=None).call("GET", "/v1/models")[0] == 401, "the list of models needs one")

    ours, other = {"Origin": "https://chat.example"}, {"Origin": "https://evil.example"}
    _, headers, _ = endpoint.call("POST", "/v1/completions", body, ours)
    check(headers.get("access-control-allow-origin") == "https://chat.example", f"a listed origin: {headers}")
    _, headers, _ = endpoint.call("POST", "/v1/completions", body, other)
    check("access-control-allow-origin" not in headers, f"another origin: {headers}")
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    status, headers, _ = Endpoint(server.port, key=None).call("OPTIONS", "/v1/chat/completions", None, ours | ask)
    check(status == 204 and headers["access-control-allow-headers"] == "authorization", f"preflight: {headers}")

    bad_and_good(endpoint)
    time.sleep(0.5)
    server.end(15)
    log = log_of_serve()
    check("request refused" in log, "the log tells of refusals")
    for secret in (WORD, KEY, OTHER_KEY):
        check(secret not in log, f"the log holds {secret!r}:\n" + "\n".join(l for l in log.splitlines() if secret in l))


def test_tls():
    crt, key = certificate()
    process = subprocess.Popen([place.program, "serve", place.model, *place.flags, "--tls-cert", crt, "--tls-key", key],
                               env=place.environment, stdout=subprocess.PIPE, text=True,
                               stderr=open(place.folder / "stderr.log", "a"))
    place.running.append(process)
    line = process.stdout.readline()
    check(line.startswith("tandem: serving tiny on https://127.0.0.1:"), f"the address says https: {line!r}")
    port = int(line.rsplit(":", 1)[1])
    endpoint = Endpoint(port, ssl.create_default_context(cafile=crt), key=None)
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 8, "temperature": 0}
    status, _, text = endpoint.call("POST", "/v1/completions", body)
    check(status == 200, f"a request through TLS: {status} {text}")
    whole = json.loads(text)["choices"][0]["text"]
    status, _, text = endpoint.call("POST", "/v1/completions", body | {"stream": True})
    events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
    check("".join(e["choices"][0]["text"] for e in events) == whole, "a stream through TLS is the whole answer")
    old = ssl.create_default_context(cafile=crt)
    warnings.simplefilter("ignore", DeprecationWarning)  # which is what is tested
    old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    for context, what in ((old, "TLS 1.1"), (ssl.create_default_context(), "an unknown authority")):
        try:
            Endpoint(port, context).call("GET", "/health")
            check(False, f"{what} gets a connection")
        except ssl.SSLError:
            pass
    try:
        status = Endpoint(port, None).call("GET", "/health")[0]
        check(False, f"plain HTTP gets an answer: {status}")
    except (http.client.HTTPException, OSError):
        pass
    if shutil.which("curl"):
        done = subprocess.run(["curl", "-sS", "--cacert", crt, "-d", json.dumps(body),
                               f"https://127.0.0.1:{port}/v1/completions"], capture_output=True, text=True, timeout=60)
        check(done.returncode == 0 and json.loads(done.stdout)["choices"][0]["text"] == whole, f"curl: {done}")
    process.send_signal(15)
    check(process.wait(60) == 0, "it ends well")
    place.running.remove(process)
    for flags, message in ((["--tls-cert", crt], "given together"),
                           (["--tls-cert", crt, "--tls-key", crt], "no PEM key"),
                           (["--api-key-file", "/no/such"], "/no/such"), (["--cors-origin", "x/"], "is no origin")):
        done = subprocess.run([place.program, "serve", place.model, *place.flags, *flags], env=place.environment,
                              capture_output=True, text=True, timeout=60)
        check(done.returncode != 0 and message in done.stderr, f"{flags}: {done}")


def test_cluster():
    cluster = processes.Cluster(place, "1P1D", "--api-key-file", key_file(0o600), "--log-level", "debug")
    endpoint = Endpoint(cluster.port)
    bad_and_good(endpoint)
    status, _, text = endpoint.call("GET", "/metrics")
    cached = [line for line in text.splitlines() if line.startswith("vllm:prompt_tokens_cached_total")]
    check(status == 200 and cached, "the gateway says how many prompt tokens were cached")
    time.sleep(1)
    cluster.end(15)
    logs = sorted(place.logs.glob("*/*.log"))
    check(len(logs) >= 3, f"gateway and nodes have logs: {logs}")
    for log in logs:
        text = log.read_text(errors="replace")
        check(len(text) > 200, f"{log.name} says something")
        for secret in (WORD, KEY, OTHER_KEY):
            check(secret not in text,
                  f"{log.name} holds {secret!r}:\n" + "\n".join(l for l in text.splitlines() if secret in l))


for test in (test_serve, test_tls, test_cluster):
    begin = time.monotonic()
    test()
    print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
