#!/usr/bin/env python3
"""The official openai client against a running server: openai_client_test.py BASE_URL MODEL [API_KEY].

BASE_URL ends in /v1. Any model will do: what is checked holds whatever it says. Exits 1 at the first fault.
"""
import concurrent.futures
import json
import re
import sys

import openai

BASE_URL, MODEL = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=BASE_URL, api_key=sys.argv[3] if len(sys.argv) > 3 else "none", max_retries=0)
MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 24}


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def expect(kind, what, call):
    try:
        call()
    except kind as error:
        return error
    sys.exit(f"FAILED: {what}: no {kind.__name__}")


def test_models():
    check(MODEL in [card.id for card in client.models.list()], "the model is listed")
    check(client.models.retrieve(MODEL).id == MODEL, "the model is found by its id")
    expect(openai.NotFoundError, "an unknown model", lambda: client.models.retrieve("no-such-model"))


def test_chat():
    answer = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    choice = answer.choices[0]
    check(choice.message.role == "assistant" and choice.message.content, "a chat has an answer")
    check(choice.finish_reason in ("stop", "length"), "a chat has an end")
    usage = answer.usage
    check(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24, "usage counts tokens")
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage adds up")
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    again = client.chat.completions.create(messages=parts, **GREEDY)
    check(again.choices[0].message.content == choice.message.content, "content parts are the same as text")
    return answer


def test_chat_stream(whole):
    text, reasons, usage, roles = "", [], None, []
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    stream = client.chat.completions.create(messages=MESSAGES, **with_usage, **GREEDY)
    for chunk in stream:
        if not chunk.choices:
            usage = chunk.usage
            continue
        delta = chunk.choices[0].delta
        roles += [delta.role] if delta.role else []
        text += delta.content or ""
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    check(text == whole.choices[0].message.content, "a stream's text is the whole text")
    check(reasons == [whole.choices[0].finish_reason], "a stream ends once, for the same reason")
    check(roles == ["assistant"], "the role comes once")
    check(usage and usage.completion_tokens == whole.usage.completion_tokens, "a stream's usage is the whole answer's")
    plain = client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
    check(all(chunk.choices and chunk.usage is None for chunk in plain), "no usage unless asked for")


def test_choices():
    fields = {"model": MODEL, "messages": MESSAGES, "n": 3, "seed": 7, "temperature": 1, "max_tokens": 16}
    first, second = (client.chat.completions.create(**fields) for _ in range(2))
    check([choice.index for choice in first.choices] == [0, 1, 2], "n choices, in order")
    texts = [choice.message.content for choice in first.choices]
    check(texts == [choice.message.content for choice in second.choices], "a seed gives the same choices again")
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    check(streamed == texts, "streamed choices are the whole ones")


def test_stop(whole):
    text = whole.choices[0].message.content
    stop = text[len(text) // 2:][:3]
    answer = client.chat.completions.create(messages=MESSAGES, stop=[stop, "never to be seen"], **GREEDY)
    check(answer.choices[0].message.content == text[:text.index(stop)], "the text ends before the stop string")
    check(answer.choices[0].finish_reason == "stop", "a stop string is a stop")


def test_logprobs(whole):
    answer = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **GREEDY)
    content = answer.choices[0].logprobs.content
    check(len(content) == answer.usage.completion_tokens, "a logprob for each token")
    check(all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in content), "logprobs and alternatives")
    said = b"".join(bytes(entry.bytes) for entry in content)
    check(said.startswith(whole.choices[0].message.content.encode()), "the tokens' bytes are the text")
    scored = client.completions.create(model=MODEL, prompt="The sky is blue", echo=True, logprobs=1, max_tokens=0)
    logprobs = scored.choices[0].logprobs
    check(scored.choices[0].text == "The sky is blue", "echo is the prompt")
    first, *rest = logprobs.token_logprobs
    check(first is None and all(value <= 0 for value in rest), "a prompt's scores")
    check(len(logprobs.tokens) == len(logprobs.text_offset) == scored.usage.prompt_tokens, "one entry a prompt token")


def test_completions():
    prompts = ["Once upon a time", "The capital of France is"]
    both = client.completions.create(prompt=prompts, **GREEDY)
    for index, prompt in enumerate(prompts):
        single = client.completions.create(prompt=prompt, **GREEDY)
        check(both.choices[index].text == single.choices[0].text, "a list's answers are those of single prompts")
    stream = client.completions.create(prompt=prompts[0], stream=True, **GREEDY)
    streamed = "".join(chunk.choices[0].text for chunk in stream)
    check(streamed == both.choices[0].text, "a completion streams its text")


def test_best_and_scores():
    fields = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 1, "seed": 3, "logprobs": 0}
    means = [sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
             for choice in client.completions.create(n=4, **fields).choices]
    best = client.completions.create(n=2, best_of=4, **fields)
    shown = [sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs) for choice in best.choices]
    check(shown == sorted(means, reverse=True)[:2], "best_of shows the likeliest of the same choices")
    scored = client.completions.create(model=MODEL, prompt="The sky is blue", max_tokens=1,
                                       extra_body={"prompt_logprobs": 1})
    scores = scored.choices[0].prompt_logprobs
    check(scores[0] is None and len(scores) == scored.usage.prompt_tokens, "one score a prompt token, but the first")
    check(all(entry["logprob"] <= 0 for score in scores[1:] for entry in score.values()), "scores are logprobs")


def test_embeddings():
    texts = ["The sky is blue", "Once upon a time there was"]
    for pooling in ("last", "mean"):
        def embed(text, **fields):
            return client.embeddings.create(model=MODEL, input=text, extra_body={"pooling": pooling}, **fields)

        both = embed(texts)  # the client asks for base64 and decodes it
        for index, text in enumerate(texts):
            check(both.data[index].embedding == embed(text).data[0].embedding, "a list's are those of single inputs")
            numbers = embed(text, encoding_format="float").data[0].embedding
            close = all(abs(a - b) < 1e-6 for a, b in zip(numbers, both.data[index].embedding, strict=True))
            check(close, "numbers and base64 are the same")
            check(abs(sum(value * value for value in numbers) - 1) < 1e-4, "an embedding has length 1")


def test_streamed_tokens():
    """The token ids of mixed requests, streamed all at once, are those of the same requests whole and one at a time."""
    def request(index):
        prompt = f"Story number {index}: " + "once upon a time " * (index % 5)
        fields = {"model": MODEL, "prompt": prompt, "n": 1 + index % 2, "max_tokens": 8 + index,
                  "seed": 100 + index, "temperature": 0 if index % 3 == 0 else 0.8}
        if index % 4 == 1:
            fields["top_p"] = 0.9
        return {**fields, "extra_body": {"return_token_ids": True, "ignore_eos": True}}

    def streamed(index):
        tokens = {}
        for chunk in client.completions.create(stream=True, **request(index)):
            for choice in chunk.choices:
                tokens.setdefault(choice.index, []).extend(getattr(choice, "token_ids", None) or [])
        return tokens

    whole = []
    for index in range(16):
        answer = client.completions.create(**request(index))
        whole.append({choice.index: choice.token_ids for choice in answer.choices})
        check(all(len(tokens) == 8 + index for tokens in whole[-1].values()), "an answer names all its tokens")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        check(list(pool.map(streamed, range(16))) == whole, "streamed tokens are the whole answer's")


def test_errors():
    error = expect(openai.NotFoundError, "an unknown model",
                   lambda: client.chat.completions.create(model="no-such-model", messages=MESSAGES))
    check(error.body["type"] == "not_found_error", "errors have a type")
    error = expect(openai.BadRequestError, "a wrong temperature",
                   lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9))
    check(error.body["param"] == "temperature", "errors name the field")
    expect(openai.BadRequestError, "no messages", lambda: client.chat.completions.create(model=MODEL, messages=[]))


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "colour", "tags"],
          "properties": {"name": {"type": "string", "maxLength": 20}, "colour": {"enum": ["red", "green", "blue"]},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2}}}


def fits_schema(text):
    value = json.loads(text)
    return (set(value) == set(SCHEMA["required"]) and type(value["age"]) is int and 0 <= value["age"] <= 150
            and isinstance(value["name"], str) and len(value["name"]) <= 20
            and value["colour"] in ("red", "green", "blue") and len(value["tags"]) <= 2
            and all(isinstance(tag, str) and len(tag) <= 8 for tag in value["tags"]))


def test_structured_outputs():
    """API-21: what is asked for in a form comes in that form, streamed and whole; what cannot be held to is refused."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    people = [{"role": "user", "content": "Invent a person, as JSON with name, age, colour and tags."}]
    num_whole = 0
    for seed in range(8):
        fields = {"model": MODEL, "messages": people, "max_tokens": 250, "seed": seed, "response_format": schema,
                  "temperature": 0 if seed == 0 else 0.9}
        choice = client.chat.completions.create(**fields).choices[0]
        if choice.finish_reason == "stop":
            check(fits_schema(choice.message.content), f"an answer fits its schema: {choice.message.content}")
            num_whole += 1
        if seed < 3:
            text = "".join(chunk.choices[0].delta.content or ""
                           for chunk in client.chat.completions.create(stream=True, **fields))
            check(text == choice.message.content, "a stream that fits a schema is the whole answer")
    check(num_whole >= 4, f"answers come to their end: {num_whole} of 8")
    names = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=4, seed=3, max_tokens=20,
                                           extra_body={"structured_outputs": {"choice": ["red", "violet"]}})
    check({choice.message.content for choice in names.choices} <= {"red", "violet"}, "a choice is one of the list")
    check(all(choice.finish_reason == "stop" for choice in names.choices), "and then it ends")
    plate = client.completions.create(model=MODEL, prompt="My number plate is ", max_tokens=30, temperature=0,
                                      extra_body={"structured_outputs": {"regex": "[A-Z]{2}-[0-9]{3}"}})
    check(re.fullmatch("[A-Z]{2}-[0-9]{3}", plate.choices[0].text), f"a text fits its regex: {plate.choices[0].text}")
    error = expect(openai.BadRequestError, "a regex that is none", lambda: client.completions.create(
        model=MODEL, prompt="x", stream=True, extra_body={"structured_outputs": {"regex": "("}}))
    check(error.body["param"] == "structured_outputs.regex", "the field of a wrong regex is named")
    bad_pattern = {"type": "json_schema", "json_schema": {"name": "x", "strict": True,
                                                          "schema": {"type": "string", "pattern": "("}}}
    expect(openai.BadRequestError, "a schema's pattern that is none", lambda: client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format=bad_pattern))


def test_leaving_early():
    stream = client.chat.completions.create(messages=MESSAGES, stream=True, model=MODEL, max_tokens=200)
    next(iter(stream))
    stream.close()
    check(client.chat.completions.create(messages=MESSAGES, **GREEDY).choices, "the server goes on after a client left")


test_models()
answer = test_chat()
test_chat_stream(answer)
test_choices()
test_stop(answer)
test_logprobs(answer)
test_completions()
test_best_and_scores()
test_embeddings()
test_streamed_tokens()
test_errors()
test_structured_outputs()
test_leaving_early()
print("openai client", openai.__version__, ": all passed")
