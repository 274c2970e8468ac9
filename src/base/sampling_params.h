#pragma once
// SamplingParams: how a request turns logits into tokens. Plain vocabulary shared by serve/ (which carries it)
// and compute/sampling (which obeys it), so that neither has to know the other.

#include <cstdint>
#include <utility>
#include <vector>

namespace tandem {

using TokenId = int32_t;

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy, lowest id on ties
  int64_t top_k = 0;                // <= 0 or >= vocabulary: off
  float top_p = 1.0f;               // (0,1]; 0 keeps the one best token
  float min_p = 0.0f;               // [0,1]: drops tokens below min_p * p(best)
  float repetition_penalty = 1.0f;  // > 0; once per distinct token of prompt and output
  float presence_penalty = 0.0f;    // output only
  float frequency_penalty = 0.0f;   // output only, times the count
  std::vector<std::pair<TokenId, float>> logit_bias;  // added first; ids inside the vocabulary, each once
  uint64_t seed = 0;                // key of the counter-based generator
  uint32_t choice = 0;              // which of n: word 1 of the counter
  int32_t num_logprobs = -1;        // -1: none; k: the sampled token's and the k best, of the raw (unpenalised) logits
  std::vector<TokenId> banned;      // never sampled this step (min_tokens bans the stop ids)
  std::vector<TokenId> allowed;     // rising; when not empty, no other token is ever sampled
  std::vector<std::vector<TokenId>> bad_words;  // the output never holds one of them; none is empty
};

}  // namespace tandem
