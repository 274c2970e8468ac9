"""What a soak sends, and how it reads answers: a pool of distinct requests, a client that asks again when it is told
to, and counts."""
import collections, http.client, json, random, socket, threading, time

from processes import text_of

TRY_AGAIN = ("429", "503")
LONGEST_WAIT_S = 5      # between two tries, whatever Retry-After says
GIVE_UP_S = 900         # then a request counts as lost
READ_TIMEOUT_S = 300
KINDS = 27
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "count", "kind"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}, "kind": {"enum": ["a", "bb", "ccc"]}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look", "take")]


class Draw:
    """Random prompts of the tiny models' vocabulary, some of which begin alike."""

    def __init__(self, seed, shortest, longest):
        self.random = random.Random(seed)
        self.shortest, self.longest = shortest, longest
        self.beginnings = [self.tokens(self.length()) for _ in range(8)]

    def length(self):
        """As many short ones as long ones, on a logarithmic scale."""
        return round(self.shortest * (self.longest / self.shortest) ** self.random.random())

    def tokens(self, count):
        return [self.random.randrange(10, 500) for _ in range(count)]

    def prompt(self):
        length = self.length()
        begin = self.random.choice(self.beginnings) if self.random.random() < 0.3 else []
        begin = begin[:max(length - 1, 0)]
        return begin + self.tokens(length - len(begin))


def request_of(kind, draw, longest_answer):
    """(path, body) of one of KINDS kinds."""
    random_, prompt = draw.random, draw.prompt()
    count = random_.randrange(4, longest_answer)
    greedy = {"temperature": 0}
    warm = {"temperature": 0.9, "seed": random_.randrange(1 << 30)}
    text = text_of(random_.randrange(1, 30), random_.randrange(1000))
    said = [{"role": "user", "content": text}]
    fields = [
        greedy,
        greedy | {"ignore_eos": True, "max_tokens": 2 * longest_answer},
        {"prompt": text} | greedy,
        warm,
        warm | {"top_p": 0.8},
        warm | {"top_k": 20, "min_p": 0.02},
        greedy | {"repetition_penalty": 1.3},
        warm | {"presence_penalty": 0.7, "frequency_penalty": 0.4},
        warm | {"n": 2},
        greedy | {"logprobs": 3},
        warm | {"logprobs": 5, "n": 2},
        {"prompt": text, "stop": ["e", "qu"]} | greedy,
        warm | {"stop": ["o"], "include_stop_str_in_output": True},
        warm | {"logit_bias": {"5": 2.5, "9": -100}},
        warm | {"min_tokens": 3},
        warm | {"stream": True, "ignore_eos": True, "max_tokens": 4 * longest_answer},
        warm | {"stream": True, "n": 2, "logprobs": 2},
        greedy | {"stream": True, "stop": ["th"]},
        {"messages": said, "stream": True, "top_logprobs": 2, "logprobs": True} | greedy,
        {"messages": said} | warm,
        {"messages": said, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
         "stream": True} | warm,
        {"structured_outputs": {"json": SCHEMA}, "n": 2, "max_tokens": 4 * longest_answer} | warm,
        {"structured_outputs": {"choice": ["red", "green", "as blue as the sky"]}, "ignore_eos": True} | warm,
        {"structured_outputs": {"regex": "([a-z]{2,8} ){40}"}, "stream": True, "max_tokens": 2 * longest_answer} | warm,
        {"messages": said, "tools": TOOLS, "tool_choice": "required", "stream": True,
         "max_tokens": 4 * longest_answer} | warm,
        {"messages": said, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "take"}}, "n": 2,
         "max_tokens": 4 * longest_answer} | warm,
        greedy | {"echo": True, "logprobs": 1},
    ][kind]
    body = {"model": "tiny", "max_tokens": count} | fields
    if "messages" in body:
        return "/v1/chat/completions", body
    return "/v1/completions", {"prompt": prompt, "return_token_ids": True} | body


def pool(count, seed, lengths, longest_answer):
    draw = Draw(seed, *lengths)
    return [request_of(i % KINDS, draw, longest_answer) for i in range(count)]


class Fault(Exception):
    """The server's word that this request has failed for good."""


def failure(what):
    """A request under which two nodes were killed ends so; asked again it is served."""
    if "died, one after the other" in what:
        return Again(0.2, "two nodes killed under it")
    return Fault(what)


class Standstill(threading.Thread):
    """A clock without the time in which this whole process stood still, and the cluster perhaps with it: what is
    measured is the cluster, not who stopped everything."""
    TICK_S, STALL_S = 0.1, 1.5

    def __init__(self):
        super().__init__(daemon=True)
        self.ticked, self.stood_s = time.monotonic(), 0.0
        self.start()

    def run(self):
        while True:
            time.sleep(self.TICK_S)
            now = time.monotonic()
            self.stood_s += self.stall(now)
            self.ticked = now

    def stall(self, now):
        return now - self.ticked if now - self.ticked > self.STALL_S else 0.0

    def now(self):
        now = time.monotonic()
        return now - self.stood_s - self.stall(now)


clock = Standstill()


class Assembly:
    """A streamed answer, put together."""

    def __init__(self):
        self.choices = collections.defaultdict(lambda: {"text": "", "tokens": [], "logprobs": [], "calls": [],
                                                        "finish": None})
        self.is_whole, self.times = False, []

    def take(self, line):
        if line == b"data: [DONE]":
            self.is_whole = True
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise failure(f"in the stream: {event['error']}")
        self.times.append(clock.now())
        for part in event["choices"]:
            choice = self.choices[part["index"]]
            choice["text"] += (part["delta"].get("content") if "delta" in part else part["text"]) or ""
            for call in part.get("delta", {}).get("tool_calls") or []:
                if call["index"] == len(choice["calls"]):
                    choice["calls"].append({"name": call["function"]["name"], "arguments": ""})
                choice["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            choice["tokens"] += part.get("token_ids") or []
            choice["logprobs"] += [part["logprobs"]] if part.get("logprobs") else []
            choice["finish"] = part["finish_reason"] or choice["finish"]

    def num_tokens(self):
        return sum(len(choice["tokens"]) for choice in self.choices.values())

    def answer(self):
        for choice in self.choices.values():
            choice["logprobs"] = joined(choice["logprobs"])
        return sorted(self.choices.items())

    def longest_pause(self):
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)


def joined(parts):
    """Logprobs of a stream's pieces as one: how tokens fall into pieces is nobody's promise."""
    whole = collections.defaultdict(list)
    for part in parts:
        for name, values in part.items():
            whole[name] += values or []
    return {name: values for name, values in sorted(whole.items()) if name != "text_offset"}


def whole_answer(text):
    answer = json.loads(text)
    usage = answer["usage"]
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or []:
            del call["id"]  # another one each time
    return answer["choices"], usage["prompt_tokens"], usage["completion_tokens"]


def same_form(answer):
    """As JSON: tuples and lists are alike, numbers are compared by their digits."""
    return json.dumps(answer, sort_keys=True)


class Client:
    """One connection, kept open. Not for two threads at once."""

    def __init__(self, port):
        self.port, self.connection = port, None
        self.pause_s = 0.0  # the longest of the newest stream

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def ask(self, request, on_token=lambda assembly: None):
        """The answer; raises Again(seconds, why) or Fault."""
        path, body = request
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READ_TIMEOUT_S)
                self.connection.connect()
                self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            if response.status == 200 and body.get("stream"):
                return self.read_stream(response, on_token)
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Again(0.2, type(error).__name__) from error
        if str(response.status) in TRY_AGAIN:
            raise Again(float(response.headers.get("Retry-After", 1)), str(response.status))
        if response.status != 200:
            raise failure(f"{response.status}: {text}")
        return same_form(whole_answer(text))

    def read_stream(self, response, on_token):
        assembly = Assembly()
        for line in response:
            try:
                assembly.take(line.strip())
            except (Again, Fault):
                self.close()
                raise
            on_token(assembly)
        if not assembly.is_whole:
            self.close()
            raise Again(0.2, "a cut stream")
        self.pause_s = assembly.longest_pause()
        return same_form(assembly.answer())

    def ask_until_answered(self, request, on_again, reasons=None, on_token=lambda assembly: None):
        """For any of `reasons` to ask again, or all."""
        give_up = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return self.ask(request, on_token)
            except Again as again:
                if reasons is not None and again.why not in reasons:
                    raise
                on_again(again.why)
                if time.monotonic() > give_up:
                    raise Fault(f"no answer within {GIVE_UP_S} s; at last: {again.why}") from again
                time.sleep(min(again.seconds, LONGEST_WAIT_S))


class Again(Exception):
    def __init__(self, seconds, why):
        super().__init__(why)
        self.seconds, self.why = seconds, why


class Tally:
    """Counts of all client threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.outcomes, self.again, self.pauses = collections.Counter(), collections.Counter(), []
        self.faults = []  # what was wrong or lost, in words

    def count(self, outcome, what=""):
        with self.lock:
            self.outcomes[outcome] += 1
            if what:
                self.faults.append(f"{outcome}: {what}")

    def count_again(self, why):
        with self.lock:
            self.again[why] += 1

    def add_pause(self, seconds):
        with self.lock:
            self.pauses.append(seconds)

    def num_done(self):
        return sum(self.outcomes.values())

    def num_bad(self):
        return self.outcomes["wrong"] + self.outcomes["lost"]


def answered(client, request, expected, tally):
    """Asks until it is answered, compares, counts."""
    tries = collections.Counter()

    def on_again(why):
        tries[why] += 1
        tally.count_again(why)

    try:
        answer = client.ask_until_answered(request, on_again)
    except Exception as fault:  # an answer that cannot be read, too
        client.close()
        return tally.count("lost", f"{request}: {fault!r}")
    if request[1].get("stream"):
        tally.add_pause(client.pause_s)
    if answer != expected:
        return tally.count("wrong", f"{request}\nis  {answer}\nnot {expected}")
    tally.count("asked again" if tries else "at once")
