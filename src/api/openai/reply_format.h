#pragma once
// ReplyFormat: the JSON of answers, whole or as server-sent events, of chat and of plain completions.
//
// Immutable; any thread. Source of the shapes: the public OpenAI API; token_ids, prompt_token_ids and stop_reason as
// vLLM has them.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai/api_error.h"
#include "api/openai/choice.h"
#include "serve/text/tokenizer.h"

namespace tandem::openai {

struct Usage {
  uint64_t num_prompt_tokens = 0;
  uint64_t num_completion_tokens = 0;
  uint64_t num_cached_tokens = 0;
};

// How one choice ended.
struct ChoiceEnd {
  std::string_view reason;
  JsonValue stop_reason;
};

// One choice of a whole answer.
struct WholeChoice {
  std::string text;
  std::vector<ShownToken> tokens;  // of the echoed prompt too, when that is shown with logprobs
  ChoiceEnd end;
  const std::vector<TokenId>* prompt = nullptr;
  const std::vector<sched::TokenLogprob>* prompt_logprobs = nullptr;  // when asked for
  std::vector<TokenId> ids;  // generated ones
};

struct ReplyHead {
  bool is_chat = true;
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  std::string system_fingerprint;  // of the numerics: equal ones give equal answers. Empty: left out
};

class ReplyFormat {
 public:
  ReplyFormat(const text::Tokenizer& tokenizer, ReplyHead head, const GenerationOptions& options)
      : tokenizer_(tokenizer), head_(std::move(head)), options_(options) {}

  std::string whole(const std::vector<WholeChoice>& choices, const Usage& usage) const;

  // Events. `prompt`: its ids, in the choice's first event when they were asked for; else null. They stand in the
  // choice, but in a chat beside the choices, which all have the same prompt.
  std::string role_event(size_t choice, const Usage& usage, const std::vector<TokenId>* prompt) const;
  // One token, or the echoed prompt's.
  std::string tokens_event(size_t choice, std::string_view text, std::span<const ShownToken> tokens, const Usage& usage,
                           const std::vector<TokenId>* prompt) const;
  std::string end_event(size_t choice, const ChoiceEnd& end, const Usage& usage) const;
  std::string usage_event(const Usage& usage) const;
  static std::string error_event(const ApiError& error);
  static std::string_view done_event() { return "data: [DONE]\n\n"; }

 private:
  void begin(JsonWriter& json, bool is_chunk) const;
  std::string finish_chunk(JsonWriter& json, const Usage& usage, const std::vector<TokenId>* prompt = nullptr) const;
  void write_chat_logprobs(JsonWriter& json, std::span<const ShownToken> tokens) const;
  void write_completion_logprobs(JsonWriter& json, std::span<const ShownToken> tokens) const;
  void write_logprobs(JsonWriter& json, std::span<const ShownToken> tokens) const;
  void write_chat_token(JsonWriter& json, TokenId id, float logprob) const;
  void write_top(JsonWriter& json, const ShownToken& token) const;
  std::string completion_name(TokenId id) const;

  const text::Tokenizer& tokenizer_;
  const ReplyHead head_;
  const GenerationOptions& options_;
};

}  // namespace tandem::openai
