// What the scripts of this folder share: node SCRIPT.mjs BASE_URL MODEL [ROUNDS]. BASE_URL has no /v1.
import assert from 'node:assert/strict';

export const [url, model, rounds = '1'] = process.argv.slice(2);
export const cities = ['Paris', 'London', 'Rome'];
export const question = 'Name three colours of the rainbow.';
export const askWeather = 'What is the weather in Paris? Use the tool.';

/** Runs the functions in turn, `rounds` times; prints how long each took, and ends the program. */
export async function runTests(tests) {
  let numTests = 0;
  for (let round = 0; round < Number(rounds); ++round) {
    for (const test of tests) {
      const start = performance.now();
      try {
        await test();
      } catch (error) {
        console.log(`FAILED: ${test.name}`);
        console.log(error);
        process.exit(1);
      }
      ++numTests;
      console.log(`  ${test.name}: ${((performance.now() - start) / 1000).toFixed(1)} s`);
    }
  }
  console.log(`${numTests} tests passed`);
}

/** The error of this class that a promise ends with. */
export async function fails(kind, what, promise) {
  let result;
  try {
    result = await promise;
  } catch (error) {
    assert.ok(error instanceof kind, `${what}: ${error?.constructor?.name} in place of ${kind.name}: ${error}`);
    return error;
  }
  throw new assert.AssertionError({ message: `${what}: no ${kind.name}, but ${JSON.stringify(result)}` });
}
