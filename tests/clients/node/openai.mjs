// The official openai client for Node.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { askWeather, cities, fails, model, question, runTests, url } from './testing.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0, timeout: 600_000 });
const messages = [{ role: 'user', content: question }];
const greedy = { model, temperature: 0, max_tokens: 24 };
const weather = z.object({ city: z.enum(cities), metric: z.boolean() });
const weatherTool = zodFunction({ name: 'get_weather', parameters: weather });
const pair = z.object({ first: z.enum(['red', 'green', 'blue']), second: z.object({ isBright: z.boolean() }) });
let whole;

async function models() {
  const ids = [];
  for await (const card of client.models.list()) ids.push(card.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
}

async function wholeChat() {
  whole = await client.chat.completions.create({ messages, logprobs: true, top_logprobs: 2, ...greedy });
  assert.equal(whole.object, 'chat.completion');
  assert.ok(whole.choices[0].message.content);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);
}

async function streamedChat() {
  const stream = await client.chat.completions.create({
    messages, stream: true, stream_options: { include_usage: true }, ...greedy });
  let text = '';
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
}

async function streamHelper() {
  let deltas = '';
  const runner = client.chat.completions.stream({ messages, logprobs: true, top_logprobs: 2, ...greedy })
    .on('content', (delta) => { deltas += delta; });
  const final = await runner.finalChatCompletion();
  assert.equal(deltas, whole.choices[0].message.content);
  assert.equal(final.choices[0].message.content, deltas);
  assert.equal(final.choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.deepEqual(final.choices[0].logprobs.content, whole.choices[0].logprobs.content);
}

async function choicesAndStops() {
  const fields = { model, messages, n: 3, seed: 5, temperature: 1, max_tokens: 12 };
  const [first, second] = [await client.chat.completions.create(fields), await client.chat.completions.create(fields)];
  assert.equal(first.choices.length, 3);
  assert.deepEqual(first.choices.map((c) => c.message.content), second.choices.map((c) => c.message.content));
  const text = whole.choices[0].message.content;
  const word = text.split(/\s+/)[1];
  const stopped = await client.chat.completions.create({ messages, stop: [word], ...greedy });
  assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(word)));
  assert.equal(stopped.choices[0].finish_reason, 'stop');
}

async function completions() {
  const prompt = 'Once upon a time';
  const answer = await client.completions.create({ prompt, echo: true, logprobs: 1, ...greedy });
  assert.ok(answer.choices[0].text.startsWith(prompt));
  let text = '';
  for await (const chunk of await client.completions.create({ prompt, stream: true, ...greedy })) {
    text += chunk.choices[0].text;
  }
  assert.equal(prompt + text, answer.choices[0].text);
}

async function rawAnswer() {
  const { data, response, request_id: id } = await client.chat.completions
    .create({ messages, ...greedy }, { headers: { 'X-Request-Id': 'from-node' } }).withResponse();
  assert.equal(response.status, 200);
  assert.equal(id, 'from-node');
  assert.equal(data.choices[0].message.content, whole.choices[0].message.content);
}

async function leavesEarly() {
  const stream = await client.chat.completions.create({ model, messages, stream: true, max_tokens: 500 });
  for await (const chunk of stream) {
    if (chunk) break;
  }
  stream.controller.abort();
  const again = await client.chat.completions.create({ messages, ...greedy });
  assert.equal(again.choices[0].message.content, whole.choices[0].message.content);
}

async function errors() {
  const unknown = await fails(OpenAI.NotFoundError, 'an unknown model',
    client.chat.completions.create({ model: 'none-such', messages }));
  assert.equal(unknown.code, 'model_not_found');
  const wrong = await fails(OpenAI.BadRequestError, 'a wrong temperature',
    client.chat.completions.create({ model, messages, temperature: 9 }));
  assert.equal(wrong.param, 'temperature');
  assert.equal(wrong.type, 'invalid_request_error');
  await fails(OpenAI.NotFoundError, 'no such endpoint', client.images.generate({ prompt: 'x' }));
  await fails(OpenAI.APIConnectionTimeoutError, 'too slow', client.chat.completions.create(
    { model, messages, max_tokens: 2000, ignore_eos: true }, { timeout: 50 }));
}

async function toolCalls() {
  const fields = { model, messages: [{ role: 'user', content: askWeather }], temperature: 0, max_tokens: 200,
    tools: [weatherTool], tool_choice: 'required', parallel_tool_calls: false };
  const answer = await client.chat.completions.parse(fields);
  assert.equal(answer.choices[0].finish_reason, 'tool_calls');
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(call.function.name, 'get_weather');
  assert.ok(cities.includes(call.function.parsed_arguments.city));
  const streamed = await client.chat.completions.stream(fields).finalChatCompletion();
  assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
}

async function toolRunner() {
  const seen = [];
  const runner = client.chat.completions.runTools({
    model, temperature: 0, max_tokens: 200, messages: [{ role: 'user', content: askWeather }],
    tool_choice: { type: 'function', function: { name: 'get_weather' } },
    tools: [{ type: 'function', function: {
      name: 'get_weather', description: 'The weather in a city', parse: JSON.parse,
      parameters: { type: 'object', additionalProperties: false, required: ['city'],
        properties: { city: { type: 'string', enum: cities } } },
      function: (given) => { seen.push(given.city); return 'sunny'; } } }] });
  await runner.done();
  assert.equal(seen.length, 1);
  assert.ok(cities.includes(seen[0]));
}

async function structuredAnswer() {
  const fields = { model, messages, temperature: 0, max_tokens: 200, response_format: zodResponseFormat(pair, 'pair') };
  const answer = await client.chat.completions.parse(fields);
  assert.ok(pair.safeParse(answer.choices[0].message.parsed).success);
  assert.equal(answer.choices[0].finish_reason, 'stop');
  const streamed = await client.chat.completions.stream(fields).finalChatCompletion();
  assert.equal(streamed.choices[0].message.content, answer.choices[0].message.content);
}

await runTests([models, wholeChat, streamedChat, streamHelper, choicesAndStops, completions, rawAnswer, leavesEarly, errors,
  toolCalls, toolRunner, structuredAnswer]);
