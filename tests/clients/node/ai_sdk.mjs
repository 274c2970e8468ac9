// The AI SDK through its provider for OpenAI-compatible servers.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, Output, generateObject, generateText, streamObject, streamText, stepCountIs, tool } from 'ai';
import { z } from 'zod';
import { askWeather, cities, fails, model as name, question, runTests, url } from './testing.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const settings = { name: 'tandem', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true };
const model = createOpenAICompatible(settings).chatModel(name);
const modelWithUsage = createOpenAICompatible({ ...settings, includeUsage: true }).chatModel(name);
const common = { model, temperature: 0, maxRetries: 0 };
const oneCall = { providerOptions: { tandem: { parallel_tool_calls: false } } };
const schema = z.object({ first: z.enum(['red', 'green', 'blue']), second: z.object({ isBright: z.boolean() }) });
const weather = (execute) => tool({
  description: 'The weather in a city', inputSchema: z.object({ city: z.enum(cities), metric: z.boolean() }), execute });
let whole;

async function wholeText() {
  whole = await generateText({ ...common, prompt: question, maxOutputTokens: 24 });
  assert.ok(whole.text);
  assert.equal(whole.finishReason, whole.usage.outputTokens === 24 ? 'length' : 'stop');
  assert.ok(whole.usage.inputTokens > 0);
}

async function streamedText() {
  const stream = streamText({ ...common, prompt: question, maxOutputTokens: 24, onError: ({ error }) => { throw error; } });
  let text = '';
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal(await stream.finishReason, whole.finishReason);
}

async function streamedUsage() {
  const stream = streamText({ ...common, model: modelWithUsage, prompt: question, maxOutputTokens: 24 });
  assert.equal(await stream.text, whole.text);
  const usage = await stream.usage;
  assert.equal(usage.outputTokens, whole.usage.outputTokens);
  assert.equal(usage.inputTokens, whole.usage.inputTokens);
}

async function systemStopsAndSeeds() {
  const text = whole.text;
  const word = text.split(/\s+/)[1];
  const stopped = await generateText({ ...common, prompt: question, maxOutputTokens: 24, stopSequences: [word] });
  assert.equal(stopped.text.trimEnd(), text.slice(0, text.indexOf(word)).trimEnd());
  const fields = { ...common, instructions: 'Be brief.', temperature: 1, seed: 3, maxOutputTokens: 16, prompt: question };
  assert.equal((await generateText(fields)).text, (await generateText(fields)).text);
  const completion = createOpenAICompatible(settings).completionModel(name);
  assert.ok((await generateText({ model: completion, maxRetries: 0, prompt: 'Once upon', maxOutputTokens: 8 })).text);
}

async function structuredAnswer() {
  const { output, finishReason } = await generateText({
    ...common, prompt: question, maxOutputTokens: 200, output: Output.object({ schema }) });
  assert.ok(schema.safeParse(output).success);
  assert.equal(finishReason, 'stop');
  const { object } = await generateObject({ ...common, schema, prompt: question, maxOutputTokens: 200 });
  assert.deepEqual(object, output);
  const stream = streamObject({ ...common, schema, prompt: question, maxOutputTokens: 200 });
  let numParts = 0;
  for await (const part of stream.partialObjectStream) numParts += part ? 1 : 0;
  assert.deepEqual(await stream.object, object);
  assert.ok(numParts > 1, 'an object comes in pieces');
}

async function toolCall() {
  const fields = { ...common, prompt: askWeather, maxOutputTokens: 200, tools: { get_weather: weather() },
    toolChoice: 'required', ...oneCall };
  const { toolCalls, finishReason } = await generateText(fields);
  assert.equal(finishReason, 'tool-calls');
  assert.equal(toolCalls[0].toolName, 'get_weather');
  assert.ok(cities.includes(toolCalls[0].input.city));
  const streamed = await streamText(fields).toolCalls;
  assert.deepEqual(streamed.map((call) => call.input), toolCalls.map((call) => call.input));
}

async function toolLoop() {
  const asked = [];
  const result = await generateText({
    ...common, prompt: askWeather, maxOutputTokens: 100, ...oneCall, stopWhen: stepCountIs(2),
    tools: { get_weather: weather(async ({ city }) => { asked.push(city); return { degrees: 17 }; }) },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }) });
  assert.equal(result.steps.length, 2);
  assert.ok(asked.length >= 1 && asked.every((city) => cities.includes(city)));
  assert.equal(result.finalStep.toolCalls.length, 0);
}

async function errors() {
  const unknown = createOpenAICompatible(settings).chatModel('none-such');
  const error = await fails(APICallError, 'an unknown model', generateText({ ...common, model: unknown, prompt: 'x' }));
  assert.equal(error.statusCode, 404);
  assert.equal(error.isRetryable, false);
  const wrong = await fails(APICallError, 'a wrong temperature',
    generateText({ ...common, temperature: 9, prompt: 'x' }));
  assert.equal(wrong.statusCode, 400);
  assert.ok(wrong.message.includes('temperature'), wrong.message);
}

await runTests([wholeText, streamedText, streamedUsage, systemStopsAndSeeds, structuredAnswer, toolCall, toolLoop, errors]);
