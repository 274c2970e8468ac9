"""A `tandem serve` process on a free port of 127.0.0.1, for as long as a `with` block runs."""
import http.client, signal, socket, subprocess, sys, tempfile, time

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 40


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`url` is where the API is, without /v1. What the server logs is shown only when the block fails."""

    def __init__(self, program, model, *flags):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [program, "serve", model, "--host", "127.0.0.1", "--port", str(self.port), *flags]

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            self.wait_until_healthy()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def wait_until_healthy(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with code {self.process.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the server was not healthy after {START_TIMEOUT_S} s")

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if kind is not None:
            self.log.seek(0)
            sys.stderr.write(self.log.read().decode(errors="replace"))
        self.log.close()
