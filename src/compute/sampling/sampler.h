#pragma once
// Sampling: one row of logits to one token, under SamplingParams. Pure functions of their arguments: no state, no
// stream of random numbers, so a row's token depends on nothing but its own logits, parameters, history and position.
//
// Order, as vLLM's: what may not come at all (a grammar's mask, bans) goes first; then logit_bias, repetition then
// frequency then presence penalty, temperature, min_p, top_k, top_p, softmax. Tokens are ranked by (logit down, id up);
// the draw walks the running sum in that order (docs/numerics.md 8).

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"

namespace tandem::sampling {

// Below this a temperature means greedy: only exact ties could still be chosen otherwise.
inline constexpr float kGreedyBelow = 1e-5f;

// A request's own tokens so far, which the penalties count, and what may follow them.
struct TokenHistory {
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  // Bit (id % 32) of word (id / 32) for each token that may come; what lies beyond the last word may not. Empty: all.
  std::span<const uint32_t> allowed = {};
};

// Working memory, reused from call to call so that steady state allocates nothing. One per thread; holds no state
// between calls.
struct Scratch {
  std::vector<float> values;      // logits after bias, penalties, bans and mask
  std::vector<float> exponents;   // log2 of the weights
  std::vector<float> weights;     // exp(logit - max) of the tokens still in play, 0 for the others
  std::vector<uint32_t> counts;   // per token; all 0 between calls
  std::vector<uint64_t> order;    // best tokens first
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // natural logarithm, of the raw logits
  uint32_t rank = 0;  // 1: the first by (logit down, id up)
  std::vector<std::pair<TokenId, float>> top;  // the k best, best first
};

struct Sampled {
  TokenId token = -1;
  std::optional<TokenLogprob> logprob;  // when params.num_logprobs >= 0
};

// kInvalidArgument naming the field and its range, when a parameter is outside it or names a token that the
// vocabulary lacks. For the edge, before a request is admitted.
Status validate(const SamplingParams& params, uint32_t vocabulary_size);

// The token at `position` (its index in the sequence). Errors concern this row alone: a logit that is NaN or
// +infinity, no token left to choose, a parameter that names no token of the row.
Result<Sampled> sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                       uint32_t position, Scratch& scratch);

// What sample() draws from: one probability a token, 0 for those filtered out; one-hot when greedy.
Result<std::vector<float>> probabilities(std::span<const float> logits, const SamplingParams& params,
                                         const TokenHistory& history, Scratch& scratch);

// How likely `token` is under the raw logits, its rank, and the `num_top` best. Also for scoring prompts.
Result<TokenLogprob> token_logprob(std::span<const float> logits, TokenId token, uint32_t num_top, Scratch& scratch);

}  // namespace tandem::sampling
