#!/usr/bin/env python3
"""Clusters that are set up otherwise than by default: cluster_setups.py TANDEM FIXTURES. Membership in etcd, which is
killed meanwhile; mutual TLS between gateways and nodes; metrics of the nodes. Standard library, etcd and openssl. Exits
1 at the first fault."""
import http.client, json, os, pathlib, re, signal, socket, ssl, subprocess, sys, time

import processes
from processes import START_TIMEOUT_S, Cluster

FLAGS = ["--port", "0", "--served-model-name", "tiny", "--kv-blocks", "2048", "--threads", "1",
         "--max-model-len", "2000"]
place = processes.Place(sys.argv[1], pathlib.Path(sys.argv[2]) / "tiny" / "llama-gqa.F16.gguf", FLAGS)
check = place.check
REQUEST = "/v1/completions", {"model": "tiny", "prompt": processes.text_of(16, 2), "max_tokens": 120,
                              "ignore_eos": True, "temperature": 0, "return_token_ids": True}


class Etcd:
    """On loopback, on free ports. Can be killed and started again."""

    def __init__(self, scheme="http", flags=()):
        self.port, self.peer_port, self.scheme, self.flags = free_port(), free_port(), scheme, flags
        self.start()

    def start(self):
        client, peer = f"{self.scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        self.process = subprocess.Popen(
            ["etcd", *self.flags, "--data-dir", str(place.folder / f"etcd-{self.port}"), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"default={peer}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        place.running.append(self.process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_listening():
            check(time.monotonic() < deadline and self.process.poll() is None, "etcd starts")
            time.sleep(0.05)

    def is_listening(self):
        """It does once it has a leader."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        place.running.remove(self.process)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(is_so, what):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_so():
        check(time.monotonic() < deadline, what)
        time.sleep(0.05)


def log_of(cluster, process):
    return (place.logs / cluster.name / f"{process}.log").read_text()


def test_etcd():
    etcd = Etcd()
    cluster = Cluster(place, "2P1D", "--registry", f"etcd://127.0.0.1:{etcd.port}/e2e/cluster")
    expected = cluster.ask(REQUEST)
    cluster.operator("role", "p2", "decode")
    cluster.wait_status(lambda nodes: nodes["p2"]["role"] == "decode", "p2 decodes")
    etcd.kill()
    lost = "the registry cannot be reached"
    for process in ("gateway", "p1", "p2", "d1"):
        wait_for(lambda: lost in log_of(cluster, process), f"{process} notices")
    check(cluster.ask(REQUEST) == expected, "without etcd the cluster answers")
    check(cluster.operator("role", "p2", "prefill", code=1), "without etcd no role changes")
    check({node["state"] for node in cluster.status().values()} == {"ready"}, f"nobody is given up: {cluster.status()}")
    etcd.start()
    for process in ("gateway", "p1", "p2", "d1"):
        wait_for(lambda: "the registry is back" in log_of(cluster, process), f"{process} finds etcd again")
    check(cluster.status()["p2"]["role"] == "decode", f"roles are as they were: {cluster.status()}")
    begin = len(cluster.lines)
    cluster.operator("drain", "d1")
    cluster.wait_for_line("tandem: d1 has left the cluster", START_TIMEOUT_S, begin)
    check(cluster.ask(REQUEST) == expected, "p2 decodes in d1's place")
    check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends a cluster in etcd")
    check(not (place.logs / cluster.name / "registry.json").exists(), "there is no registry beside etcd")
    etcd.kill()
    return cluster.all_pids()


def path(name, suffix):
    return str(place.folder / f"{name}.{suffix}")


def make_certificates():
    """Two authorities, `ours` and `other`, and a certificate of each, `member` and `stranger`."""
    def openssl(*args):
        done = subprocess.run(["openssl", *args], capture_output=True, text=True)
        check(done.returncode == 0, f"openssl {args}: {done.stderr}")

    for authority, holder in (("ours", "member"), ("other", "stranger")):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *key, "-keyout", path(authority, "key"), "-out", path(authority, "crt"), "-days", "2",
                "-subj", "/CN=authority")
        openssl("req", *key, "-keyout", path(holder, "key"), "-out", path(holder, "csr"), "-subj", "/CN=" + holder)
        with open(path(holder, "ext"), "w") as extensions:
            extensions.write("subjectAltName=IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", path(holder, "csr"), "-CA", path(authority, "crt"), "-CAkey",
                path(authority, "key"), "-CAcreateserial", "-out", path(holder, "crt"), "-days", "2", "-extfile",
                path(holder, "ext"))


def tls_flags(holder, authority):
    return ["--cluster-cert", path(holder, "crt"), "--cluster-key", path(holder, "key"), "--cluster-ca",
            path(authority, "crt")]


def answer_without_certificate(control):
    """What a node says to a client that trusts it and has nothing to show; empty: it was refused."""
    context = ssl.create_default_context(cafile=path("ours", "crt"))
    host, port = control.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 30) as plain, \
                context.wrap_socket(plain, server_hostname=host) as secret:
            secret.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return secret.recv(1024)
    except OSError as error:
        check(not isinstance(error, TimeoutError), "a client without certificate is answered, if by an end")
        return b""


def check_outsider(cluster, flags, why):
    """A gateway that has not what the nodes want meets none of them and says why."""
    with open(path("outsider", "log"), "w+") as log:
        gateway = subprocess.Popen([place.program, "gateway", place.model, "--cluster", cluster.name, "--port", "0",
                                    *flags], env=place.environment, stdout=log, stderr=log)
        place.running.append(gateway)
        for node in ("p1", "d1"):
            line = rf"no session with a node.*node={node}.*{re.escape(why)}"
            wait_for(lambda: re.search(line, open(log.name).read()), f"a line like {line} in its log")
        check("tandem: serving" not in open(log.name).read(), "an outsider does not serve")
        gateway.kill()
        gateway.wait()
        place.running.remove(gateway)


def get(url):
    host, _, rest = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", "/" + rest)
    response = connection.getresponse()
    return response.status, response.read().decode()


def check_metrics(cluster):
    nodes = cluster.status()
    urls = [nodes[node].get("metrics", "") for node in ("p1", "d1")]
    check(len(set(urls)) == 2 and all(url.startswith("http://127.0.0.1:") for url in urls), f"two addresses: {nodes}")
    for url in urls:
        status, text = get(url)
        check(status == 200 and re.search(r"^tandem_node_requests \d+$", text, re.M), f"{url}: {status} {text}")
        check(get(url.replace("/metrics", "/health")) == (200, '{"status":"ok"}'), f"{url}: /health")
        check(get(url.replace("/metrics", "/v1/models"))[0] == 404, f"{url}: nothing else")


def test_tls_and_metrics():
    half = subprocess.run([place.program, "up", place.model, "--cluster-cert", path("member", "crt")], text=True,
                          env=place.environment, capture_output=True, timeout=60)
    check(half.returncode == 1 and "are given together" in half.stderr, f"a certificate alone: {half}")
    cluster = Cluster(place, "1P1D", *tls_flags("member", "ours"), "--metrics-port", "0")
    cluster.ask(REQUEST)
    check_metrics(cluster)
    registry = json.loads((place.logs / cluster.name / "registry.json").read_text())
    for node in registry["nodes"]:
        check(answer_without_certificate(node["control"]) == b"", f"{node['id']} refuses who shows no certificate")
    check_outsider(cluster, [], "without TLS")
    mutual = "with TLS (each side must trust the other's certificate)"
    check_outsider(cluster, tls_flags("stranger", "ours"), mutual)  # the nodes do not trust it
    check_outsider(cluster, tls_flags("member", "other"), mutual)   # it does not trust the nodes
    cluster.ask(REQUEST)
    check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends a cluster with TLS")
    return cluster.all_pids()


def test_etcd_over_tls():
    etcd = Etcd("https", ["--cert-file", path("member", "crt"), "--key-file", path("member", "key"),
                          "--client-cert-auth", "--trusted-ca-file", path("ours", "crt")])
    registry = ["--registry", f"etcd+https://127.0.0.1:{etcd.port}/secret"]
    for flags in (tls_flags("stranger", "ours"), tls_flags("member", "other")):
        node = subprocess.run([place.program, "node", place.model, "--cluster", "outside", "--kv-blocks", "64",
                               *registry, *flags], text=True, env=place.environment, capture_output=True, timeout=120)
        check(node.returncode == 1 and "with TLS each side must trust" in node.stderr,
              f"etcd and {flags} do not trust each other: {node}")
    cluster = Cluster(place, "1M", *registry, *tls_flags("member", "ours"))
    cluster.ask(REQUEST)
    check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends a cluster in an etcd with TLS")
    etcd.kill()
    return cluster.all_pids()


def main():
    make_certificates()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            began = time.monotonic()
            left = [pid for pid in test() if os.path.exists(f"/proc/{pid}")]
            check(not left, f"{name} leaves processes behind: {left}")
            print(f"passed {name} in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
