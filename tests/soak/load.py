"""What the modes of a soak share: the model, what one process answers, threads that ask, neighbours, results."""
import contextlib, json, pathlib, random, shutil, signal, subprocess, sys, threading, time

from processes import Serve
from work import Client, Tally, answered, clock

MAX_MODEL_LEN = 4608
FLAGS = ["--port", "0", "--served-model-name", "tiny", "--kv-blocks", "4096", "--threads", "1",
         "--max-model-len", str(MAX_MODEL_LEN)]
# A neighbour that does nothing but move memory.
HOG = "a = bytearray(32 << 20); b = bytearray(32 << 20)\nwhile True: b[:] = a"
began_s = time.monotonic()


def say(text):
    print(f"{time.monotonic() - began_s:8.1f} s  {text}", flush=True)


def long_model(fixtures, folder):
    """The tiny model with room for long prompts: only its configuration differs."""
    source, model = fixtures / "tiny" / "llama-gqa", pathlib.Path(folder) / "model"
    shutil.copytree(source, model, copy_function=lambda a, b: pathlib.Path(b).symlink_to(a))
    config = json.loads((source / "config.json").read_text()) | {"max_position_embeddings": 2 * MAX_MODEL_LEN}
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    (model / "reference.safetensors").unlink(missing_ok=True)
    return model


def roles_of(topology):
    """{"p1": "prefill", ...} as `tandem up` names the nodes of 2P1D."""
    roles, count = {}, ""
    for letter in topology:
        if letter.isdigit():
            count += letter
            continue
        role = {"P": "prefill", "D": "decode", "M": "mixed"}[letter.upper()]
        roles |= {f"{letter.lower()}{i + 1}": role for i in range(int(count or 1))}
        count = ""
    return roles


def expected_answers(place, requests, *flags):
    """Those of one process; asked by several threads."""
    one, tally, answers = Serve(place, *flags), Tally(), [None] * len(requests)
    indices = iter(range(len(requests)))

    def run():
        client = Client(one.port)
        for index in indices:
            answers[index] = client.ask_until_answered(requests[index], tally.count_again)
        client.close()

    in_threads(6, run)
    place.check(one.end(signal.SIGTERM) == 0 and None not in answers, "one process answers everything")
    return answers


def in_threads(count, run):
    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def neighbours(count):
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


class Load:
    """Client threads that send the pool over and over until they are told to end."""

    def __init__(self, port, requests, expected, tally, num_clients, seed, most):
        self.requests, self.expected, self.tally, self.most = requests, expected, tally, most
        self.port, self.is_over, self.num_sent, self.lock = port, threading.Event(), 0, threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed + i),), daemon=True)
                        for i in range(num_clients)]
        for thread in self.threads:
            thread.start()

    def run(self, chance):
        client = Client(self.port)
        while not self.is_over.is_set():
            with self.lock:
                if self.num_sent >= self.most:
                    self.is_over.set()
                    break
                self.num_sent += 1
            index = chance.randrange(len(self.requests))
            answered(client, self.requests[index], self.expected[index], self.tally)
        client.close()

    def end(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def results(tally, faults, watch):
    pauses = sorted(tally.pauses)

    def at(share):
        return round(1e3 * pauses[min(len(pauses) - 1, int(share * len(pauses)))], 1) if pauses else None

    return {"requests": tally.num_done(), "outcomes": dict(tally.outcomes), "asked_again": dict(tally.again),
            "wrong": tally.outcomes["wrong"], "lost": tally.outcomes["lost"], "faults": dict(sorted(faults.items())),
            "longest_pause_ms": {"p50": at(0.5), "p99": at(0.99), "max": at(1), "streams": len(pauses)},
            "stood_still_s": round(clock.stood_s, 1),
            "metrics": watch.totals(), "words": tally.faults[:5]}
