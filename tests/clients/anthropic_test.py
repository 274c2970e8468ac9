#!/usr/bin/env python3
"""The official anthropic client for Python on POST /v1/messages: whole and streamed answers, tools, exceptions."""
import anthropic

import harness
from harness import NAME, check, equal, fails

MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]
GREEDY = {"temperature": 0}  # the client has no argument for it any more
FIELDS = {"model": NAME, "max_tokens": 24, "extra_body": GREEDY}
CITIES = ["Paris", "London", "Rome"]
WEATHER_TOOL = {"name": "get_weather", "description": "The weather in a city", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["city", "metric"],
    "properties": {"city": {"type": "string", "enum": CITIES}, "metric": {"type": "boolean"}}}}
TIME_TOOL = {"name": "get_time", "description": "The time in a city", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["city"],
    "properties": {"city": {"type": "string", "enum": CITIES}}}}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
ANY = {"type": "any", "disable_parallel_tool_use": True}  # one call: a small model would go on and on
TIMEOUT_S = 600  # a busy machine is not a fault


def client_of(server, **fields):
    return anthropic.Anthropic(base_url=server.url, **{
        "api_key": "none", "max_retries": 0, "timeout": TIMEOUT_S, **fields})


def text_of(message):
    equal([block.type for block in message.content], ["text"], "an answer is one text")
    return message.content[0].text


class Messages:
    def __init__(self, server):
        self.client = client_of(server)
        self.whole = None

    def tests(self):
        return [self.test_whole, self.test_stream, self.test_events, self.test_system, self.test_conversation,
                self.test_stop_sequence, self.test_sampling, self.test_count_tokens, self.test_errors]

    def ask(self, **fields):
        return self.client.messages.create(**{"messages": MESSAGES, **FIELDS, **fields})

    def test_whole(self):
        self.whole = self.ask()
        equal((self.whole.type, self.whole.role, self.whole.model), ("message", "assistant", NAME), "what an answer is")
        check(self.whole.id.startswith("msg_"), f"an id of a message: {self.whole.id}")
        check(text_of(self.whole), "an answer has a text")
        usage = self.whole.usage
        check(usage.input_tokens > 0 and 0 < usage.output_tokens <= 24, f"usage: {usage}")
        expected = "max_tokens" if usage.output_tokens == 24 else "end_turn"
        equal(self.whole.stop_reason, expected, "why it ended")
        equal(self.whole.stop_sequence, None, "no stop sequence")

    def test_stream(self):
        """The client's own accumulator gives the whole answer."""
        with self.client.messages.stream(messages=MESSAGES, **FIELDS) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        equal(text, text_of(self.whole), "a streamed text")
        equal(text_of(final), text, "the accumulated text")
        equal(final.stop_reason, self.whole.stop_reason, "a stream's end")
        equal(final.usage.output_tokens, self.whole.usage.output_tokens, "a stream's output tokens")
        # Tokens of the prompt that were in the cache are counted apart, and the cache knows it by now.
        def num_read(usage):
            return usage.input_tokens + (usage.cache_read_input_tokens or 0)
        equal(num_read(final.usage), num_read(self.whole.usage), "a stream's input tokens")

    def test_events(self):
        kinds, text = [], ""
        for event in self.client.messages.create(messages=MESSAGES, stream=True, **FIELDS):
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
            if event.type == "content_block_delta":
                equal((event.index, event.delta.type), (0, "text_delta"), "a piece of the text")
                text += event.delta.text
        equal([kind for kind in kinds if kind != "ping"],
              ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
               "message_stop"], "the order of events")
        equal(text, text_of(self.whole), "the pieces of the text")

    def test_system(self):
        plain = self.ask(system="Answer in French.")
        blocks = self.ask(system=[{"type": "text", "text": "Answer in French."}],
                          messages=[{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}])
        equal(text_of(blocks), text_of(plain), "texts and lists of blocks are the same")
        check(plain.usage.input_tokens != self.whole.usage.input_tokens, "a system text is read")

    def test_conversation(self):
        messages = MESSAGES + [{"role": "assistant", "content": "Red, green and blue."},
                               {"role": "user", "content": "And the first one again?"}]
        longer = self.ask(messages=messages)
        check(text_of(longer), "a conversation goes on")

    def test_stop_sequence(self):
        text = text_of(self.whole)
        word = text.split()[1]
        stopped = self.ask(stop_sequences=["never to be seen", word])
        equal((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", word), "what stopped it")
        equal(text_of(stopped), text[:text.index(word)], "a stopped text")

    def test_sampling(self):
        answer = self.ask(metadata={"user_id": "somebody"}, extra_body={"temperature": 1, "top_k": 5, "top_p": 0.9})
        check(answer.usage.output_tokens > 0, "an answer with sampling")

    def test_count_tokens(self):
        counted = self.client.messages.count_tokens(model=NAME, messages=MESSAGES)
        whole = self.whole.usage
        equal(counted.input_tokens, whole.input_tokens + (whole.cache_read_input_tokens or 0), "tokens counted ahead")

    def test_errors(self):
        error = fails(anthropic.NotFoundError, "an unknown model", lambda: self.ask(model="none-such"))
        equal(error.type, "not_found_error", "the type of an unknown model's error")
        for what, fields in (("temperature", {"extra_body": {"temperature": 9}}), ("messages", {"messages": []}),
                             ("max_tokens", {"max_tokens": 0}),
                             ("a role", {"messages": [{"role": "x", "content": "y"}]}),
                             ("a prompt too long", {"messages": [{"role": "user", "content": "word " * 9000}]})):
            error = fails(anthropic.BadRequestError, what, lambda: self.ask(**fields))
            equal(error.type, "invalid_request_error", f"the type of error for {what}")
            check(error.api_message, f"a message for {what}")
        fails(anthropic.BadRequestError, "a stream's error",
              lambda: self.client.messages.create(messages=[], stream=True, **FIELDS))


class Tools:
    def __init__(self, server):
        self.client = client_of(server)
        self.call = None

    def tests(self):
        return [self.test_any, self.test_streamed_call, self.test_named, self.test_auto_and_none, self.test_two_rounds]

    def ask(self, **fields):
        return self.client.messages.create(**{"model": NAME, "max_tokens": 200, "extra_body": GREEDY,
                                              "messages": ASK_WEATHER, "tools": [WEATHER_TOOL, TIME_TOOL], **fields})

    def one_call(self, message, names):
        equal(message.stop_reason, "tool_use", "a call ends an answer")
        calls = [block for block in message.content if block.type == "tool_use"]
        check(calls, f"there is a call: {message.content}")
        check(calls[0].id and calls[0].name in names, f"the call is of a tool: {calls[0]}")
        check(calls[0].input["city"] in CITIES, f"the input fits the schema: {calls[0].input}")
        return calls[0]

    def test_any(self):
        self.call = self.one_call(self.ask(tool_choice=ANY), ["get_weather", "get_time"])

    def test_streamed_call(self):
        kinds = []
        with self.client.messages.stream(model=NAME, max_tokens=200, extra_body=GREEDY, messages=ASK_WEATHER,
                                         tools=[WEATHER_TOOL, TIME_TOOL], tool_choice=ANY) as stream:
            for event in stream:
                kinds.append(event.type)
            final = stream.get_final_message()
        call = self.one_call(final, [self.call.name])
        equal(call.input, self.call.input, "a streamed input")
        check("input_json" in kinds, "the input comes in pieces")

    def test_named(self):
        for tool in (WEATHER_TOOL, TIME_TOOL):
            self.one_call(self.ask(tool_choice={"type": "tool", "name": tool["name"]}), [tool["name"]])
        fails(anthropic.BadRequestError, "a tool that is not there",
              lambda: self.ask(tool_choice={"type": "tool", "name": "nothing"}))

    def test_auto_and_none(self):
        answer = self.ask(tool_choice={"type": "auto"})
        called = any(block.type == "tool_use" for block in answer.content)
        equal(answer.stop_reason == "tool_use", called, "the end says what it was")
        answer = self.ask(tool_choice={"type": "none"}, max_tokens=24)
        check(all(block.type == "text" for block in answer.content), "no call where none may be")

    def test_two_rounds(self):
        messages = ASK_WEATHER + [
            {"role": "assistant", "content": [self.call.to_dict()]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": self.call.id,
                                          "content": [{"type": "text", "text": "17 degrees, sunny"}]}]}]
        answer = self.ask(messages=messages, max_tokens=24)
        check(answer.usage.input_tokens > 0 and answer.stop_reason, "an answer after a tool's result")


class Keys:
    """Against a server with a key: both headers that clients send are taken."""

    def __init__(self, server):
        self.server = server

    def tests(self):
        return [self.test_keys]

    def test_keys(self):
        error = fails(anthropic.AuthenticationError, "a wrong key",
                      lambda: client_of(self.server).messages.create(messages=MESSAGES, **FIELDS))
        equal(error.type, "authentication_error", "the type of a wrong key's error")
        for fields in ({"api_key": "a-key"}, {"api_key": None, "auth_token": "a-key"},
                       {"api_key": "none", "default_headers": {"x-api-key": "a-key", "Authorization": anthropic.omit}}):
            answer = client_of(self.server, **fields).messages.create(messages=MESSAGES, **FIELDS)
            check(text_of(answer), f"let in with {sorted(fields)}")


def main():
    num_tests, seconds = harness.run_groups(harness.arguments(), [
        ((), (Messages, Tools)), (("--api-key", "a-key"), (Keys,))])
    harness.report("anthropic (Python)", anthropic.__version__, f"{num_tests} tests passed in {seconds:.1f} s",
                   tests=num_tests, errors=0, seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
