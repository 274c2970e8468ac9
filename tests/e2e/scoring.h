#pragma once
// A model run by hand through the StepExecutor: scores of given tokens, and greedy generation, without scheduler.

#include <memory>
#include <string>
#include <vector>

#include "serve/runner/model_runner.h"

namespace tandem::e2e {

// Options for a small test: the CPU device, no cache, a pool that holds `max_tokens`.
runner::RunnerOptions test_options(const std::string& model_path, uint32_t max_tokens);
// Stops the test program with the reason when the model does not open.
std::unique_ptr<runner::ModelRunner> open_runner(const runner::RunnerOptions& options);

// Log-probabilities by token id, over the whole vocabulary; row i is given tokens[0 .. i].
using Scores = std::vector<std::vector<float>>;

// Of all positions, computed in prefill chunks of at most `chunk` tokens.
Scores score_all(runner::ModelRunner& runner, const std::vector<TokenId>& tokens, uint32_t chunk);
// Of positions [begin, begin + count) alone; call with rising `begin` so that the KV before is there.
Scores score_chunk(runner::ModelRunner& runner, const std::vector<TokenId>& tokens, uint32_t begin, uint32_t count);

// Plain greedy decoding: num_new tokens after the prompt.
std::vector<TokenId> greedy(runner::ModelRunner& runner, std::vector<TokenId> tokens, uint32_t num_new);

}  // namespace tandem::e2e
