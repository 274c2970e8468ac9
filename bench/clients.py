"""Clients of a server under overload, all on one thread, each over a socket of its own."""
import heapq, json, re, selectors, socket, time

HEAD_END = b"\r\n\r\n"


class Call:
    """One request over a socket of its own."""

    def __init__(self, port, body, key=None):
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.begin = time.monotonic()
        self.first = self.last = None
        self.answer = bytearray()
        keyed = f"Authorization: Bearer {key}\r\n" if key else ""
        self.socket.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{keyed}"
                             f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data)
        self.socket.setblocking(False)

    def read(self):
        """False at the end."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if data:
            self.answer += data
            self.last = time.monotonic()
            if self.first is None and b"data: {" in self.answer:
                self.first = self.last
        return bool(data)

    @property
    def status(self):
        return int(self.answer[9:12]) if self.answer.startswith(b"HTTP/1.1 ") else 0

    @property
    def retry_after_s(self):
        found = re.search(rb"\r\nRetry-After: (\d+)\r\n", self.answer.split(HEAD_END)[0] + b"\r\n")
        return int(found[1]) if found else None

    @property
    def is_served(self):
        """Whole: to its end, and without an error in it."""
        return self.status == 200 and b"data: [DONE]" in self.answer and b'"error"' not in self.answer


class Crowd:
    """Runs calls on one thread. `at` plans what is to happen; `on_end(call)` hears of each call's end."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.plans, self.number = [], 0

    def at(self, moment, action):
        self.number += 1
        heapq.heappush(self.plans, (moment, self.number, action))

    def start(self, call, on_end):
        self.selector.register(call.socket, selectors.EVENT_READ, (call, on_end))

    @property
    def num_open(self):
        return len(self.selector.get_map())

    def run(self, until=None):
        """Until that moment; without one until nothing is planned or open."""
        while until is None and (self.plans or self.num_open) or until is not None and time.monotonic() < until:
            now = time.monotonic()
            while self.plans and self.plans[0][0] <= now:
                heapq.heappop(self.plans)[2]()
            waits = [1.0] + ([self.plans[0][0] - now] if self.plans else []) + ([until - now] if until else [])
            for key, _ in self.selector.select(max(0, min(waits))):
                call, on_end = key.data
                if not call.read():
                    self.selector.unregister(call.socket)
                    call.socket.close()
                    on_end(call)


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * (len(ordered) - 1) + 0.999))] if ordered else None
