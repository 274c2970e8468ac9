#!/usr/bin/env python3
"""litellm as a library: completion, stream, tools, structured answers, its exceptions."""
import importlib.metadata, json, os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it looks for a price list on the network
import litellm  # noqa: E402
from pydantic import BaseModel  # noqa: E402
from typing import Literal  # noqa: E402

import harness  # noqa: E402
from harness import NAME, check, equal, fails  # noqa: E402

litellm.telemetry = False
litellm.suppress_debug_info = True
MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"],
    "properties": {"city": {"type": "string", "enum": ["Paris", "London"]}}}}}


class Paint(BaseModel):
    colour: Literal["red", "green", "blue"]
    is_bright: bool


class Library:
    def __init__(self, server):
        self.fields = {"model": f"openai/{NAME}", "api_base": server.url + "/v1", "api_key": "none", "temperature": 0,
                       "messages": MESSAGES, "max_tokens": 24, "num_retries": 0}

    def tests(self):
        return [self.test_whole, self.test_stream, self.test_text, self.test_tools, self.test_structured,
                self.test_errors]

    def ask(self, **fields):
        return litellm.completion(**self.fields | fields)

    def test_whole(self):
        self.whole = self.ask()
        check(self.whole.choices[0].message.content and self.whole.usage.completion_tokens > 0, "an answer")

    def test_stream(self):
        chunks = list(self.ask(stream=True, stream_options={"include_usage": True}))
        built = litellm.stream_chunk_builder(chunks)
        equal(built.choices[0].message.content, self.whole.choices[0].message.content, "a streamed answer")
        equal(built.usage.completion_tokens, self.whole.usage.completion_tokens, "a streamed answer's usage")

    def test_text(self):
        fields = {key: value for key, value in self.fields.items() if key not in ("messages", "model")}
        answer = litellm.text_completion(model=f"text-completion-openai/{NAME}", prompt="Once upon a time", **fields)
        check(answer.choices[0].text, "a completion")

    def test_tools(self):
        answer = self.ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200).choices[0]
        equal(answer.finish_reason, "tool_calls", "a call ends an answer")
        check(json.loads(answer.message.tool_calls[0].function.arguments)["city"] in ("Paris", "London"), "arguments")

    def test_structured(self):
        schema = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True,
                                                          "schema": Paint.model_json_schema()}}
        Paint.model_validate_json(self.ask(response_format=schema, max_tokens=200).choices[0].message.content)

    def test_errors(self):
        fails(litellm.NotFoundError, "an unknown model", lambda: self.ask(model="openai/none-such"))
        fails(litellm.BadRequestError, "a wrong temperature", lambda: self.ask(temperature=9))
        long = [{"role": "user", "content": "word " * 9000}]
        fails(litellm.ContextWindowExceededError, "a prompt too long", lambda: self.ask(messages=long))


def main():
    num_tests, seconds = harness.run_groups(harness.arguments(), [((), (Library,))])
    harness.report("litellm", importlib.metadata.version("litellm"), f"{num_tests} tests passed in {seconds:.1f} s",
                   tests=num_tests, errors=0, seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
