#pragma once
// What clients ask for, read from JSON and checked; no tokenizer and no generator yet. Plain data.
//
// An absent field and null are the same. Unknown fields are ignored; fields that would change the answer but that
// we do not do are refused. Source: the public OpenAI API, and the extensions that vLLM's clients send.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/openai/api_error.h"
#include "base/json.h"
#include "base/sampling_params.h"
#include "serve/sched/grammar.h"
#include "serve/sched/request.h"
#include "serve/text/tool_call.h"

namespace tandem::openai {

// What the model and the server allow.
struct RequestLimits {
  uint32_t vocab_size = 0;
  uint32_t max_logprobs = 64;
  uint32_t max_choices = 128;
  uint32_t max_prompts = 1024;  // in one list
  uint32_t max_answers = 1024;  // prompts times n
  uint32_t max_model_len = 1 << 20;
  uint64_t max_list_tokens = 0;  // of several prompts together; 0: no limit
};

// Sampling where the request says nothing: the model's generation_config.json, or these neutral values.
struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int64_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};

// What chat and plain completions have in common.
struct GenerationOptions {
  std::string model;        // empty: the served one
  SamplingParams sampling;  // seed is not set yet
  std::optional<uint64_t> seed;
  uint32_t num_choices = 1;  // generated: best_of, or n
  uint32_t num_shown = 1;    // n; of more choices those of the highest mean logprob
  std::optional<uint64_t> max_tokens;
  uint64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stops;
  std::vector<TokenId> stop_token_ids;
  bool include_stop = false;
  bool skip_special = true;
  bool is_stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int32_t prompt_logprobs = -1;  // -1: none; k: in the answer, each prompt token's and the k best there
  std::vector<std::string> bad_words;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // "token_id:N" for a token's text in logprobs
  std::optional<bool> parse_special;
  std::optional<bool> add_special_tokens;
  std::optional<uint64_t> truncate_prompt_tokens;  // keep the last ones
  std::optional<sched::Grammar> grammar;  // the answer has to fit it
  std::string grammar_param;              // the field that asks for it, for errors; empty: none in particular
  // How calls are found in the answer; null: they are not looked for.
  std::shared_ptr<const text::ToolCallRules> tool_calls;
  int32_t priority = 0;
  double deadline_ms = 0;  // from arrival; 0: none
  std::string cache_salt;
  std::string request_id;  // what the client calls it, where no header says
};

// The tools that an answer may call. kNone: it calls none.
struct ToolUse {
  enum class Choice : uint8_t { kNone, kAuto, kRequired, kNamed };
  Choice choice = Choice::kNone;
  std::string named;        // kNamed: which
  bool is_parallel = true;  // several calls in one answer
  std::vector<text::ToolSpec> tools;
};

// What the chat template gets.
struct ChatPrompt {
  JsonValue::Array messages;  // contents are strings, tool arguments are objects
  std::optional<JsonValue> tools;
  ToolUse tool_use;
  std::optional<JsonValue> documents;
  JsonValue::Object template_variables;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on where the last message ends
};

struct ChatRequest {
  GenerationOptions options;
  ChatPrompt prompt;
};

using TextOrIds = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationOptions options;
  std::vector<TextOrIds> prompts;
  std::optional<std::string> suffix;  // the answer goes between the prompt and it
  std::vector<TokenId> suffix_ids;    // see PromptText::encode_suffix
  bool echo = false;
};

struct EmbeddingRequest {
  CompletionRequest input;  // of the options those that prompts have
  sched::Pooling pooling = sched::Pooling::kLast;
  bool is_base64 = false;
  bool normalizes = true;
};

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> text;  // else chat
  ChatPrompt chat;
  bool add_special_tokens = true;
  std::optional<bool> parse_special;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

// The sampling values of a model's generation_config.json; what it does not name stays neutral. kCorrupt names the
// field.
Result<SamplingDefaults> parse_generation_config(std::string_view json);

// A value or what to tell the client.
template <class T>
using Parsed = std::variant<T, ApiError>;

Parsed<ChatRequest> parse_chat_request(std::string_view body, const RequestLimits& limits,
                                       const SamplingDefaults& defaults);
Parsed<CompletionRequest> parse_completion_request(std::string_view body, const RequestLimits& limits,
                                                   const SamplingDefaults& defaults);
// pooling: where the request does not say.
Parsed<EmbeddingRequest> parse_embedding_request(std::string_view body, const RequestLimits& limits,
                                                 sched::Pooling pooling);
Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body);
Parsed<DetokenizeRequest> parse_detokenize_request(std::string_view body, const RequestLimits& limits);

}  // namespace tandem::openai
