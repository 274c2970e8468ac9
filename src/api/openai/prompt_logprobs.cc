#include "api/openai/prompt_logprobs.h"

#include <algorithm>
#include <string>

namespace tandem::openai {
namespace {

struct Entry {
  TokenId token;
  float logprob;
  uint64_t rank;
};

void write_entry(JsonWriter& json, const text::Tokenizer& tokenizer, const Entry& entry) {
  json.key(std::to_string(entry.token)).begin_object();
  // JSON has no infinity; clients expect a number.
  json.key("logprob").number(std::max(entry.logprob, -9999.0f)).key("rank").unsigned_integer(entry.rank);
  json.key("decoded_token").string(tokenizer.token_bytes(entry.token)).end_object();
}

}  // namespace

void write_prompt_logprobs(JsonWriter& json, const text::Tokenizer& tokenizer,
                           const std::vector<sched::TokenLogprob>& logprobs) {
  json.key("prompt_logprobs").begin_array().null();
  for (const sched::TokenLogprob& own : logprobs) {
    json.begin_object();
    write_entry(json, tokenizer, {own.token, own.logprob, own.rank});
    for (size_t i = 0; i < own.top.size(); ++i) {
      const auto& [token, logprob] = own.top[i];
      if (token != own.token) write_entry(json, tokenizer, {token, logprob, i + 1});
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace tandem::openai
