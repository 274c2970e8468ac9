#!/usr/bin/env python3
"""The official openai client for Python: what tests/e2e/openai_client_test.py leaves out. Streams through the client's
own helpers, its exceptions, its retries, tools and structured answers."""
import asyncio, concurrent.futures, enum, json, time

import httpx2
import openai
import pydantic

import harness
from harness import NAME, check, equal, fails

MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]
GREEDY = {"model": NAME, "temperature": 0, "max_tokens": 24}
TO_THE_END = GREEDY | {"max_tokens": 100}  # the demo model ends by itself; the client's helpers refuse what did not
TIMEOUT_S = 600  # a busy machine is not a fault
CITIES = ["Paris", "London", "Rome"]
WEATHER_TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "metric"],
                   "properties": {"city": {"type": "string", "enum": CITIES}, "metric": {"type": "boolean"}}}}}
TIME_TOOL = {"type": "function", "function": {
    "name": "get_time", "description": "The time in a city",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city"],
                   "properties": {"city": {"type": "string", "enum": CITIES}}}}}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]


class Colour(str, enum.Enum):
    red, green, blue = "red", "green", "blue"


class Paint(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")  # else a hot model goes on adding fields
    colour: Colour
    is_bright: bool


class Pair(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    first: Paint
    second: Paint


def client_of(server, **fields):
    return openai.OpenAI(base_url=server.url + "/v1", **{
        "api_key": "none", "max_retries": 0, "timeout": TIMEOUT_S, **fields})


class Basics:
    """Against a server with its defaults."""

    def __init__(self, server):
        self.server, self.client = server, client_of(server)
        self.whole = self.ended = None

    def tests(self):
        return [self.test_whole, self.test_stream_helper, self.test_stream_logprobs, self.test_completion_stream,
                self.test_many_at_once, self.test_raw_answers, self.test_finish_reasons, self.test_bad_requests,
                self.test_not_found, self.test_time_out, self.test_no_server]

    def test_whole(self):
        self.whole = self.client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=3, **GREEDY)
        self.ended = self.client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=3, **TO_THE_END)
        equal(self.ended.choices[0].finish_reason, "stop", "how the longer answer ends")
        equal(self.whole.object, "chat.completion", "the kind of answer")
        equal(self.whole.model, NAME, "the model's name")
        check(self.whole.id.startswith("chatcmpl-"), f"an id of a chat: {self.whole.id}")
        check(abs(self.whole.created - time.time()) < 300, "an answer is dated")
        details = self.whole.usage.prompt_tokens_details
        check(details and details.cached_tokens >= 0, "usage tells what was cached")

    def test_stream_helper(self):
        """The client's own accumulator gives the whole answer."""
        with self.client.chat.completions.stream(
                messages=MESSAGES, logprobs=True, top_logprobs=3, stream_options={"include_usage": True},
                **TO_THE_END) as it:
            kinds = {event.type for event in it}
            final = it.get_final_completion()
        check({"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds, f"events: {kinds}")
        got, expected = final.choices[0], self.ended.choices[0]
        equal(got.message.content, expected.message.content, "a streamed answer")
        equal(got.finish_reason, expected.finish_reason, "a streamed answer's end")
        equal(final.usage.completion_tokens, self.ended.usage.completion_tokens, "a streamed answer's usage")
        self.streamed = got

    def test_stream_logprobs(self):
        def plain(choice):
            return [(entry.token, entry.bytes, entry.logprob, [(top.token, top.logprob) for top in entry.top_logprobs])
                    for entry in choice.logprobs.content]
        equal(plain(self.streamed), plain(self.ended.choices[0]), "streamed logprobs")
        for entry in self.ended.choices[0].logprobs.content:
            equal(entry.logprob, entry.top_logprobs[0].logprob, "the token of temperature 0 is the likeliest one")

    def test_completion_stream(self):
        fields = {"model": NAME, "prompt": ["Once upon a time", "The sea"], "n": 2, "logprobs": 2, "seed": 11,
                  "temperature": 1, "max_tokens": 12}
        whole = self.client.completions.create(**fields)
        equal([choice.index for choice in whole.choices], [0, 1, 2, 3], "choices of two prompts")
        texts, tokens, offsets = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)]
        for chunk in self.client.completions.create(stream=True, **fields):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                if choice.logprobs:
                    tokens[choice.index] += choice.logprobs.tokens
                    offsets[choice.index] += choice.logprobs.text_offset
        equal(texts, [choice.text for choice in whole.choices], "streamed texts")
        equal(tokens, [choice.logprobs.tokens for choice in whole.choices], "streamed tokens")
        equal(offsets, [choice.logprobs.text_offset for choice in whole.choices], "streamed offsets")

    def test_many_at_once(self):
        """Streams of the asynchronous client, which come all at once, are the answers of single requests."""
        prompts = [[{"role": "user", "content": f"Count from {n} to {n + 3}."}] for n in range(12)]
        alone = [self.client.chat.completions.create(messages=prompt, **GREEDY).choices[0].message.content
                 for prompt in prompts]

        async def one(client, prompt):
            stream = await client.chat.completions.create(messages=prompt, stream=True, **GREEDY)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0,
                                          timeout=TIMEOUT_S) as client:
                return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

        equal(asyncio.run(all_of_them()), alone, "streams at once")

    def test_raw_answers(self):
        raw = self.client.chat.completions.with_raw_response.create(
            messages=MESSAGES, extra_headers={"X-Request-Id": "from-a-test"}, **GREEDY)
        equal(raw.headers["x-request-id"], "from-a-test", "the client's request id comes back")
        equal(raw.parse().choices[0].message.content, self.whole.choices[0].message.content, "a raw answer")
        other = self.client.chat.completions.create(messages=MESSAGES, **GREEDY)
        check(other._request_id, "the client learns the request's id")
        ignored = self.client.chat.completions.create(
            messages=MESSAGES, user="u", metadata={"a": "b"}, store=False, service_tier="auto",
            extra_body={"no_such_field": 1}, **GREEDY)
        equal(ignored.choices[0].message.content, self.whole.choices[0].message.content, "with fields that do nothing")

    def test_finish_reasons(self):
        short = self.client.chat.completions.create(model=NAME, messages=MESSAGES, temperature=0,
                                                    max_completion_tokens=2)
        equal((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 2), "a short answer")
        text = self.whole.choices[0].message.content
        word = text.split()[1]
        stopped = self.client.chat.completions.create(messages=MESSAGES, stop=word, **GREEDY)
        equal(stopped.choices[0].finish_reason, "stop", "an answer that a word stops")
        equal(stopped.choices[0].message.content, text[:text.index(word)], "a stopped text")

    def test_bad_requests(self):
        cases = {"temperature": {"temperature": -1}, "top_p": {"top_p": 2}, "n": {"n": 0}, "stop": {"stop": [1]},
                 "max_tokens": {"max_tokens": "many"}, "logit_bias": {"logit_bias": {"x": 1}},
                 "messages": {"messages": [{"role": "user", "content": 7}]}}
        for param, wrong in cases.items():
            fields = {"model": NAME, "messages": MESSAGES} | wrong
            error = fails(openai.BadRequestError, param, lambda: self.client.chat.completions.create(**fields))
            equal(error.type, "invalid_request_error", f"the type of error for {param}")
            check(error.param and error.param.startswith(param), f"the error names {param}: {error.body}")
            streamed = fails(openai.BadRequestError, param,
                             lambda: self.client.chat.completions.create(stream=True, **fields))
            equal(streamed.body, error.body, f"a stream's error for {param}")
        long = [{"role": "user", "content": "word " * 9000}]
        error = fails(openai.BadRequestError, "a prompt too long",
                      lambda: self.client.chat.completions.create(model=NAME, messages=long))
        equal(error.code, "context_length_exceeded", "the code for a prompt too long")

    def test_not_found(self):
        fails(openai.NotFoundError, "a model", lambda: self.client.models.retrieve("none-such"))
        error = fails(openai.NotFoundError, "a chat's model",
                      lambda: self.client.chat.completions.create(model="none-such", messages=MESSAGES))
        equal(error.code, "model_not_found", "the code for an unknown model")
        fails(openai.NotFoundError, "an endpoint that is not there", lambda: self.client.images.generate(prompt="x"))

    def test_time_out(self):
        hasty = self.client.with_options(timeout=0.05)
        fails(openai.APITimeoutError, "a long answer", lambda: hasty.chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=2000, extra_body={"ignore_eos": True}))
        again = self.client.chat.completions.create(messages=MESSAGES, **GREEDY)
        equal(again.choices[0].message.content, self.whole.choices[0].message.content, "an answer after a time-out")
        deadline = time.monotonic() + 30
        while json.loads(harness.fetch(self.server.url, "/load"))["server_load"] > 0:
            check(time.monotonic() < deadline, "a client that has left costs the server no more work")
            time.sleep(0.1)

    def test_no_server(self):
        nowhere = self.client.with_options(base_url=f"http://127.0.0.1:{harness.free_port()}/v1")
        fails(openai.APIConnectionError, "no server", lambda: nowhere.models.list())


class Tools:
    """Tool calls and structured answers: their shapes, not their wisdom."""

    def __init__(self, server):
        self.client = client_of(server)
        self.call = None

    def tests(self):
        return [self.test_required, self.test_streamed_call, self.test_named, self.test_none_and_auto,
                self.test_two_rounds, self.test_parsed_tool, self.test_json_schema, self.test_json_stream,
                self.test_json_object, self.test_bad_schema]

    def ask(self, **fields):
        return self.client.chat.completions.create(
            **{"model": NAME, "messages": ASK_WEATHER, "temperature": 0, "max_tokens": 200, **fields})

    def one_call(self, choice, names):
        equal(choice.finish_reason, "tool_calls", "a call ends an answer")
        check(len(choice.message.tool_calls) >= 1, "there is a call")
        call = choice.message.tool_calls[0]
        equal(call.type, "function", "the kind of call")
        check(call.id, "a call has an id")
        check(call.function.name in names, f"the call is of a tool: {call.function.name}")
        given = json.loads(call.function.arguments)
        check(given["city"] in CITIES, f"arguments fit the schema: {given}")
        return call

    def test_required(self):
        answer = self.ask(tools=[WEATHER_TOOL, TIME_TOOL], tool_choice="required", parallel_tool_calls=False)
        self.call = self.one_call(answer.choices[0], ["get_weather", "get_time"])
        check(not answer.choices[0].message.content, "a forced call has no text")

    def test_streamed_call(self):
        with self.client.chat.completions.stream(model=NAME, messages=ASK_WEATHER, temperature=0, max_tokens=200,
                                                 tools=[WEATHER_TOOL, TIME_TOOL], tool_choice="required",
                                                 parallel_tool_calls=False) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        call = self.one_call(final.choices[0], [self.call.function.name])
        equal(call.function.arguments, self.call.function.arguments, "streamed arguments")
        check("tool_calls.function.arguments.delta" in kinds, "arguments come in pieces")
        check("tool_calls.function.arguments.done" in kinds, "arguments have an end")

    def test_named(self):
        for tool in (WEATHER_TOOL, TIME_TOOL):
            name = tool["function"]["name"]
            answer = self.ask(tools=[WEATHER_TOOL, TIME_TOOL],
                              tool_choice={"type": "function", "function": {"name": name}})
            message = answer.choices[0].message
            equal([call.function.name for call in message.tool_calls], [name], "the tool that was named")
            check(json.loads(message.tool_calls[0].function.arguments)["city"] in CITIES, "arguments fit the schema")
        error = fails(openai.BadRequestError, "a tool that is not there", lambda: self.ask(
            tools=[WEATHER_TOOL], tool_choice={"type": "function", "function": {"name": "nothing"}}))
        check(error.param and error.param.startswith("tool_choice"), f"the error names tool_choice: {error.body}")

    def test_none_and_auto(self):
        answer = self.ask(tools=[WEATHER_TOOL], tool_choice="none")
        message = answer.choices[0].message
        check(message.content and not message.tool_calls, "no call where none may be")
        answer = self.ask(tools=[WEATHER_TOOL], tool_choice="auto")
        message = answer.choices[0].message
        check(message.content or message.tool_calls, "text or calls")
        equal(answer.choices[0].finish_reason == "tool_calls", bool(message.tool_calls), "the end says what it was")

    def test_two_rounds(self):
        messages = ASK_WEATHER + [
            {"role": "assistant", "content": None, "tool_calls": [self.call.model_dump()]},
            {"role": "tool", "tool_call_id": self.call.id, "content": "17 degrees, sunny"}]
        answer = self.ask(messages=messages, tools=[WEATHER_TOOL, TIME_TOOL], max_tokens=24)
        check(answer.usage.prompt_tokens > 0 and answer.choices[0].finish_reason, "an answer after a tool's result")

    def test_parsed_tool(self):
        """The client checks strict arguments against the class that the tool was made of."""
        answer = self.client.chat.completions.parse(
            model=NAME, messages=ASK_WEATHER, temperature=0, max_tokens=200,
            tools=[openai.pydantic_function_tool(Paint)], tool_choice="required", parallel_tool_calls=False)
        parsed = answer.choices[0].message.tool_calls[0].function.parsed_arguments
        check(isinstance(parsed, Paint), f"arguments of the class: {parsed!r}")

    def test_json_schema(self):
        answer = self.client.chat.completions.parse(model=NAME, messages=MESSAGES, temperature=0, max_tokens=200,
                                                    response_format=Pair)
        check(isinstance(answer.choices[0].message.parsed, Pair), "an answer of the class")
        equal(answer.choices[0].finish_reason, "stop", "a structured answer ends by itself")
        hot = self.client.chat.completions.create(
            model=NAME, messages=MESSAGES, temperature=1.5, n=4, seed=3, max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "pair", "strict": True,
                                                                     "schema": Pair.model_json_schema()}})
        for choice in hot.choices:
            Pair.model_validate_json(choice.message.content)

    def test_json_stream(self):
        with self.client.chat.completions.stream(model=NAME, messages=MESSAGES, temperature=0, max_tokens=200,
                                                 response_format=Pair) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0].message
        whole = self.client.chat.completions.parse(model=NAME, messages=MESSAGES, temperature=0, max_tokens=200,
                                                   response_format=Pair)
        equal(streamed.content, whole.choices[0].message.content, "a streamed structured answer")
        equal(streamed.parsed, whole.choices[0].message.parsed, "what it parses to")

    def test_json_object(self):
        answer = self.client.chat.completions.create(
            model=NAME, temperature=0, max_tokens=300, response_format={"type": "json_object"},
            messages=[{"role": "user", "content": "Give me a JSON object with one key."}])
        choice = answer.choices[0]
        check(choice.message.content.lstrip().startswith("{"), f"an object begins: {choice.message.content!r}")
        if choice.finish_reason == "stop":
            check(isinstance(json.loads(choice.message.content), dict), "a finished answer is an object")

    def test_bad_schema(self):
        for schema in ({"type": "no such type"}, {"type": "object", "properties": 7}):
            error = fails(openai.BadRequestError, f"schema {schema}", lambda: self.client.chat.completions.create(
                messages=MESSAGES, response_format={"type": "json_schema", "json_schema": {
                    "name": "x", "strict": True, "schema": schema}}, **GREEDY))
            check(error.param and error.param.startswith("response_format"), f"the error names the field: {error.body}")


class Full:
    """Against a server with room for one request and one that waits: refusals, and what the client makes of them."""

    def __init__(self, server):
        self.server = server

    def tests(self):
        return [self.test_refused, self.test_tried_again]

    def flood(self, client, count):
        def one(index):
            try:
                return client.completions.create(model=NAME, prompt=f"Number {index}", max_tokens=24, temperature=0,
                                                 extra_body={"ignore_eos": True})
            except openai.APIStatusError as error:
                return error
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    def test_refused(self):
        answers = self.flood(client_of(self.server), 12)
        errors = [answer for answer in answers if isinstance(answer, openai.APIStatusError)]
        check(errors, "a full server refuses")
        check(len(errors) < len(answers), "a full server still answers some")
        for error in errors:
            check(type(error) is openai.InternalServerError and error.status_code == 503, f"503, not {error!r}")
            check(int(error.response.headers["retry-after"]) >= 1, "a refusal says when to come again")

    def test_tried_again(self):
        """With retries each gets its answer, and never one that differs from a quiet server's."""
        statuses = []
        http = httpx2.Client(event_hooks={"response": [lambda response: statuses.append(response.status_code)]},
                             timeout=TIMEOUT_S)
        patient = client_of(self.server, max_retries=40, http_client=http)
        answers = self.flood(patient, 5)
        check(503 in statuses, "some were refused first")
        wrong = [answer for answer in answers if isinstance(answer, openai.APIStatusError)]
        check(not wrong, f"each was answered in the end: {wrong[:1]}")
        alone = [patient.completions.create(model=NAME, prompt=f"Number {index}", max_tokens=24, temperature=0,
                                            extra_body={"ignore_eos": True}) for index in range(5)]
        equal([answer.choices[0].text for answer in answers], [answer.choices[0].text for answer in alone],
              "answers after retries")


class Keys:
    """Against a server with keys, of which each may have one request waiting."""

    def __init__(self, server):
        self.server = server

    def tests(self):
        return [self.test_keys]

    def test_keys(self):
        error = fails(openai.AuthenticationError, "a wrong key", lambda: client_of(self.server).models.list())
        check(error.status_code == 401, "401")
        good = client_of(self.server, api_key="first-key")
        check([card.id for card in good.models.list()] == [NAME], "a right key is let in")
        fails(openai.AuthenticationError, "a wrong key's chat", lambda: client_of(self.server).chat.completions.create(
            messages=MESSAGES, **GREEDY))
        answers = Full(self.server).flood(good, 12)
        refused = [answer for answer in answers if isinstance(answer, openai.APIStatusError)]
        check(refused and all(type(error) is openai.RateLimitError for error in refused), f"429: {refused[:1]}")
        check(all(int(error.response.headers["retry-after"]) >= 1 for error in refused), "429 says when to come again")


def main():
    num_tests, seconds = harness.run_groups(harness.arguments(), [
        ((), (Basics, Tools)),
        (("--max-num-seqs", "1", "--max-queue-length", "1"), (Full,)),
        (("--api-key", "first-key,second-key", "--max-num-seqs", "1", "--max-queue-per-key", "1"), (Keys,))])
    harness.report("openai (Python)", openai.__version__, f"{num_tests} tests passed in {seconds:.1f} s",
                   tests=num_tests, errors=0, seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
