#!/usr/bin/env python3
"""A cluster of processes as its users meet it: cluster.py TANDEM FIXTURES. Answers equal those of one process byte for
byte, also when nodes are killed or stopped in the middle of streams; an operator's orders; nothing is left behind.
Standard library only. Exits 1 at the first fault."""
import concurrent.futures, http.client, json, os, pathlib, re, signal, subprocess, sys, threading, time

import processes
from processes import ANSWER_TIMEOUT_S, START_TIMEOUT_S, text_of

FLAGS = ["--port", "0", "--served-model-name", "tiny", "--kv-blocks", "2048", "--threads", "1",
         "--max-model-len", "2000"]
place = processes.Place(sys.argv[1], pathlib.Path(sys.argv[2]) / "tiny" / "llama-gqa.F16.gguf", FLAGS)
check = place.check


def cluster_of(topology):
    return processes.Cluster(place, topology)


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "count"],
          "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer"}}}


def requests():
    """Each of another kind."""
    def completion(**fields):
        return "/v1/completions", {"model": "tiny", "max_tokens": 24, "return_token_ids": True} | fields

    def chat(**fields):
        return "/v1/chat/completions", {"model": "tiny", "max_tokens": 24} | fields

    greedy, warm = {"temperature": 0}, {"temperature": 0.9}
    said = [{"role": "user", "content": "Tell me about " + text_of(5, 3)}]
    return [
        completion(prompt="Hello", **greedy),
        completion(prompt=text_of(300, 1), **greedy),
        completion(prompt=text_of(16, 2), max_tokens=120, ignore_eos=True, **greedy),
        completion(prompt="a", max_tokens=1, **greedy),
        completion(prompt=text_of(40, 4), seed=11, **warm),
        completion(prompt=text_of(40, 4), seed=12, top_p=0.8, **warm),
        completion(prompt=text_of(70, 5), seed=13, top_k=20, min_p=0.02, **warm),
        completion(prompt=text_of(30, 6), repetition_penalty=1.3, **greedy),
        completion(prompt=text_of(30, 6), presence_penalty=0.7, frequency_penalty=0.4, seed=14, **warm),
        completion(prompt=text_of(20, 7), n=2, seed=15, **warm),
        completion(prompt=text_of(200, 8), n=2, seed=16, max_tokens=60, ignore_eos=True, **warm),
        completion(prompt=text_of(25, 9), logprobs=3, **greedy),
        completion(prompt=text_of(25, 9), logprobs=5, seed=17, n=2, **warm),
        completion(prompt=text_of(15, 10), stop=["e", "qu"], max_tokens=80, **greedy),
        completion(prompt=text_of(15, 10), stop=["o"], include_stop_str_in_output=True, seed=18, max_tokens=80, **warm),
        completion(prompt=text_of(50, 11), logit_bias={"5": 2.5, "9": -100}, seed=19, **warm),
        completion(prompt=text_of(12, 12), min_tokens=20, seed=20, max_tokens=40, **warm),
        completion(prompt=[text_of(9, 13), text_of(90, 14)], **greedy),
        chat(messages=said, **greedy),
        chat(messages=said, seed=21, logprobs=True, top_logprobs=4, **warm),
        chat(messages=said, seed=22, max_tokens=100, **warm,
             response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
        completion(prompt=text_of(60, 15), seed=23, n=2, structured_outputs={"regex": "([a-z]{2,6}, ){9}"}, **warm),
        completion(prompt=text_of(8, 16), ignore_eos=True, guided_choice=["yes", "no", "nobody knows"], **greedy),
        completion(prompt=text_of(8, 17), logprobs=2, seed=24, **warm,
                   structured_outputs={"grammar": 'start: WORD (" " WORD)*\nWORD: /[a-z]{1,5}/'}),
    ]


def check_cached(endpoint, what):
    """What is asked again is found in the prefix cache, but for the last block, which has to give logits."""
    path, body = requests()[1]
    endpoint.ask((path, body))
    usage = json.loads(endpoint.open(path, body).read())["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    check(cached == (usage["prompt_tokens"] - 1) // 16 * 16 > 0, f"{what}: {usage}")
    endpoint.open("/reset_prefix_cache", {}).read()
    usage = json.loads(endpoint.open(path, body).read())["usage"]
    check(usage["prompt_tokens_details"]["cached_tokens"] == 0, f"after a reset nothing is cached: {usage}")


def compare(cluster, expected, what):
    with concurrent.futures.ThreadPoolExecutor(len(expected)) as pool:
        answers = list(pool.map(cluster.ask, requests()))
    for request, answer, reference in zip(requests(), answers, expected):
        check(answer == reference, f"{what}: {request}\nis   {answer}\nnot  {reference}")


class Stream(threading.Thread):
    """One streamed answer, read on a thread of its own."""

    def __init__(self, endpoint, index):
        super().__init__(daemon=True)
        self.endpoint, self.text, self.tokens, self.ends = endpoint, "", [], []
        self.body = {"model": "tiny", "prompt": text_of(20 + 10 * index, index), "max_tokens": STREAM_TOKENS,
                     "ignore_eos": True, "stream": True, "return_token_ids": True, "seed": 40 + index,
                     "temperature": 0 if index % 2 == 0 else 0.8}
        if index % 3 == 2:
            # An end token would end it whatever ignore_eos says; min_tokens keeps it out.
            self.body |= {"structured_outputs": {"regex": "[a-z .]*"}, "min_tokens": STREAM_TOKENS}
        self.has_begun, self.fault = threading.Event(), None
        self.start()

    def run(self):
        try:
            for line in self.endpoint.open("/v1/completions", self.body):
                self.take(line.decode().strip())
        except (OSError, http.client.HTTPException) as error:
            self.fault = repr(error)
        self.has_begun.set()

    def take(self, line):
        if not line.startswith("data: {"):
            self.ends += [line] if line == "data: [DONE]" else []
            return
        chunk = json.loads(line[6:])
        if "error" in chunk:
            self.fault = line
            return
        for choice in chunk["choices"]:
            self.text += choice["text"]
            self.tokens += choice.get("token_ids") or []
            self.ends += [choice["finish_reason"]] if choice["finish_reason"] else []
        if len(self.tokens) >= 5:
            self.has_begun.set()

    def result(self):
        self.join(ANSWER_TIMEOUT_S)
        check(not self.is_alive() and not self.fault, f"a stream ends as it should: {self.fault}, {len(self.tokens)}")
        return self.text, self.tokens, self.ends


NUM_STREAMS, STREAM_TOKENS = 6, 1500


def streams_through(endpoint, disturb=lambda: None):
    streams = [Stream(endpoint, index) for index in range(NUM_STREAMS)]
    for stream in streams:
        check(stream.has_begun.wait(ANSWER_TIMEOUT_S), "a stream begins")
    is_disturbed = any(stream.is_alive() for stream in streams)
    disturb()
    return [stream.result() for stream in streams], is_disturbed


def compare_streams(cluster, expected, disturb, what):
    results, is_disturbed = streams_through(cluster, disturb)
    check(is_disturbed, f"{what}: some stream was under way")
    for index, (result, reference) in enumerate(zip(results, expected)):
        same = next((i for i, (a, b) in enumerate(zip(result[1], reference[1])) if a != b), len(result[1]))
        check(result == reference, f"{what}: stream {index} differs from token {same} on: {len(result[1])} tokens, "
                                   f"{result[2]}, not {len(reference[1])}, {reference[2]}")


def check_trace(cluster):
    """The last request's timeline: one trace over three processes, each part within the whole."""
    trace, sender = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=ANSWER_TIMEOUT_S)
    body = {"model": "tiny", "prompt": text_of(200, 50), "max_tokens": 30, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"traceparent": f"00-{trace}-{sender}-01"})
    response = connection.getresponse()
    check(response.read() and response.status == 200, "a request with a traceparent is answered")
    check(response.getheader("traceparent") is None, "the header belongs to requests")
    wanted = {("gateway", name) for name in ("request", "queue", "reserve")}
    wanted |= {("p1", name) for name in ("prefill queue", "prefill", "push")}
    wanted |= {("d1", name) for name in ("exposed transfer", "decode queue", "first emit", "decode")}
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        events = json.loads(cluster.open("/cluster/trace").read())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        own = {(names[event["pid"]], event["name"]): event for event in events if event["args"].get("trace") == trace}
        if wanted <= set(own):
            break
        check(time.monotonic() < deadline, f"the timeline is whole: {sorted(own)}")
        time.sleep(0.05)
    check(set(own) == wanted and len({event["tid"] for event in own.values()}) == 1, f"one request's parts: {own}")
    spans = {name: (event["ts"], event["ts"] + event["dur"]) for (_, name), event in own.items()}
    check(spans["prefill"][0] >= spans["prefill queue"][0] >= spans["reserve"][0], f"in order: {spans}")
    check(spans["first emit"][0] >= spans["prefill"][0] >= spans["request"][0], f"in order: {spans}")
    log = "".join(path.read_text(errors="replace") for path in place.logs.glob(f"{cluster.name}/*.log"))
    check(len(re.findall(rf"trace={trace}", log)) >= 3, "the trace is in the logs of gateway and nodes")


def test_equal_answers(expected, _):
    cluster = cluster_of("1P1D")
    check_trace(cluster)
    compare(cluster, expected, "1P1D answers as one process")
    check_cached(cluster, "a cluster tells what was cached")
    table = cluster.operator("status")
    check(re.search(r"^d1 +decode +ready", table, re.M), f"the table of nodes:\n{table}")
    sentence = "Prefill and decode are in processes of their own: p1 prefills, d1 decodes."
    check(table.split("\n")[0] == sentence, f"what the table means:\n{table}")
    check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends a cluster")
    return cluster.all_pids()


def test_deaths(expected, expected_streams):
    cluster = cluster_of("2P1D")
    compare(cluster, expected, "2P1D answers as one process")
    for node in ("d1", "p1"):
        begin = []
        compare_streams(cluster, expected_streams, lambda: begin.append(cluster.kill(node)), f"{node} is killed")
        cluster.wait_ready(node, begin[0])
    begin = []
    compare_streams(cluster, expected_streams, lambda: begin.append(cluster.kill("d1", signal.SIGSTOP)),
                    "d1 is stopped")
    cluster.wait_for_line("tandem: d1 was silent and has been killed; .*", START_TIMEOUT_S, begin[0])
    cluster.wait_ready("d1", begin[0])
    cluster.wait_status(lambda nodes: all(node["state"] == "ready" for node in nodes.values()), "all are ready again")
    compare(cluster, expected, "after all that 2P1D answers as one process")
    check(cluster.end(signal.SIGINT) == 0, "Ctrl-C ends a cluster that had deaths")
    return cluster.all_pids()


def test_operator(expected, _):
    cluster = cluster_of("2P1D")
    second = subprocess.run([place.program, "up", place.model, "--cluster", cluster.name, *FLAGS], text=True,
                            env=place.environment, capture_output=True, timeout=60)
    check(second.returncode == 1 and "is up already" in second.stderr, f"one `up` a cluster: {second}")
    check("no node" in cluster.operator("drain", "nobody", code=1), "an unknown node")
    check("is no role" in cluster.operator("role", "p1", "king", code=1), "an unknown role")
    cluster.operator("role", "p2", "decode")
    cluster.wait_status(lambda nodes: nodes["p2"]["role"] == "decode", "p2 decodes")
    cluster.operator("role", "p1", "decode", code=1)
    # Nodes wrote down what the cluster serves; each says that it knows the newest revision.
    newest = json.loads(cluster.operator("status", "--json"))["config_revision"]
    cluster.wait_status(lambda nodes: newest > 0 and all(node["config_revision"] == newest for node in nodes.values()
                                                         if node["role"] != "gateway"), "the configuration is known")
    begin = len(cluster.lines)
    cluster.operator("drain", "d1")
    cluster.wait_for_line("tandem: d1 has left the cluster", START_TIMEOUT_S, begin)
    compare(cluster, expected, "without d1 the others answer")
    check(cluster.end(signal.SIGTERM) == 0, "SIGTERM ends it too")
    return cluster.all_pids()


def main():
    one = processes.Serve(place)
    expected = [one.ask(request) for request in requests()]
    expected_streams, _ = streams_through(one)
    check_cached(one, "one process tells what was cached")
    check(one.end(signal.SIGTERM) == 0, "the one process ends")
    for _, tokens, ends in expected_streams:
        check(len(tokens) == STREAM_TOKENS and ends == ["length", "data: [DONE]"], "what streams are to equal is whole")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            began = time.monotonic()
            pids = test(expected, expected_streams)
            check(len(pids) >= 3, f"the processes are known: {pids}")
            left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
            check(not left, f"{name} leaves processes behind: {left}")
            print(f"passed {name} in {time.monotonic() - began:.1f} s", flush=True)


main()
