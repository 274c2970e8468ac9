#pragma once
// The field prompt_logprobs of whole answers, in vLLM's shape: by prompt token an object of token ids, the prompt's own
// first and then the best others; null for the first token, which nothing comes before.

#include <vector>

#include "base/json.h"
#include "serve/sched/request.h"
#include "serve/text/tokenizer.h"

namespace tandem::openai {

// Key and value. `logprobs`: of the second token and those after it.
void write_prompt_logprobs(JsonWriter& json, const text::Tokenizer& tokenizer,
                           const std::vector<sched::TokenLogprob>& logprobs);

}  // namespace tandem::openai
