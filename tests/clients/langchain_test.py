#!/usr/bin/env python3
"""langchain-openai: invoke, stream, batch, tools and structured answers."""
import importlib.metadata

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
from typing import Literal

import harness
from harness import NAME, check, equal

QUESTION = "Name three colours of the rainbow."


class Paint(BaseModel):
    """A paint."""
    colour: Literal["red", "green", "blue"]
    is_bright: bool


@tool
def get_weather(city: Literal["Paris", "London"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class Chains:
    def __init__(self, server):
        fields = {"base_url": server.url + "/v1", "api_key": "none", "model": NAME, "temperature": 0, "max_retries": 0}
        self.chat = ChatOpenAI(**fields, max_tokens=24)
        self.long_chat = ChatOpenAI(**fields, max_tokens=200)
        self.plain = OpenAI(**fields, max_tokens=12)

    def tests(self):
        return [self.test_invoke, self.test_stream, self.test_batch, self.test_completion, self.test_tools,
                self.test_structured]

    def test_invoke(self):
        self.whole = self.chat.invoke(QUESTION)
        check(self.whole.content and self.whole.usage_metadata["output_tokens"] > 0, f"an answer: {self.whole}")
        check(self.chat.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)]).content, "with a system message")

    def test_stream(self):
        parts = list(self.chat.stream(QUESTION))
        equal("".join(part.content for part in parts), self.whole.content, "a streamed answer")

    def test_batch(self):
        questions = [f"Count from {n} to {n + 3}." for n in range(8)]
        equal([answer.content for answer in self.chat.batch(questions)],
              [self.chat.invoke(question).content for question in questions], "a batch")

    def test_completion(self):
        equal("".join(self.plain.stream("Once upon a time")), self.plain.invoke("Once upon a time"), "a completion")

    def test_tools(self):
        asked = HumanMessage("What is the weather in Paris?")
        answer = self.long_chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke([asked])
        [call, *_] = answer.tool_calls
        equal(call["name"], "get_weather", "the tool")
        result = get_weather.invoke(call)
        check(isinstance(result, ToolMessage), "the arguments fit the tool")
        check(self.long_chat.bind_tools([get_weather], tool_choice="none").invoke([asked, answer, result]).content,
              "an answer after the tool's")

    def test_structured(self):
        for method in ("json_schema", "function_calling"):
            paint = self.long_chat.with_structured_output(Paint, method=method).invoke(QUESTION)
            check(isinstance(paint, Paint), f"an answer of the class, by {method}: {paint!r}")


def main():
    num_tests, seconds = harness.run_groups(harness.arguments(), [((), (Chains,))])
    harness.report("langchain-openai", importlib.metadata.version("langchain-openai"),
                   f"{num_tests} tests passed in {seconds:.1f} s", tests=num_tests, errors=0, seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
