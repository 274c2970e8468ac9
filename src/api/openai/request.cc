#include "api/openai/request.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/openai/chat_messages.h"
#include "api/openai/request_options.h"
#include "base/log.h"

namespace tandem::openai {
namespace {

// A list of texts, of ids, or of lists of ids: what the first item is, all must be.
std::vector<TextOrIds> read_prompt_list(FieldReader& fields, std::string_view name, const JsonValue::Array& list,
                                        const RequestLimits& limits) {
  std::vector<TextOrIds> prompts;
  if (list.empty())
    fields.fail(name, "is empty");
  else if (list[0].is_number())
    prompts.emplace_back(read_token_ids(fields, name, list, limits.vocab_size));
  if (list.empty() || list[0].is_number()) return prompts;
  if (list.size() > limits.max_prompts) {
    fields.fail(name, fmt::format("{} prompts, at most {} are allowed", list.size(), limits.max_prompts));
    return prompts;
  }
  for (const JsonValue& item : list) {
    if (list[0].if_string() && item.if_string()) {
      prompts.emplace_back(*item.if_string());
    } else if (list[0].if_array() && item.if_array()) {
      prompts.emplace_back(read_token_ids(fields, name, *item.if_array(), limits.vocab_size));
    } else {
      fields.fail_kind(name, "a string, a list of strings, of token ids, or of lists of token ids", item);
    }
    if (fields.has_failed()) break;
  }
  return prompts;
}

std::vector<TextOrIds> read_prompts(FieldReader& fields, std::string_view name, const RequestLimits& limits) {
  const JsonValue* prompt = fields.get(name);
  if (!prompt) {
    fields.fail(name, "is missing");
    return {};
  }
  if (const std::string* text = prompt->if_string()) return {*text};
  if (const JsonValue::Array* list = prompt->if_array()) return read_prompt_list(fields, name, *list, limits);
  fields.fail_kind(name, "a string, a list of strings, of token ids, or of lists of token ids", *prompt);
  return {};
}

// OpenAI's chat API: logprobs is a flag, top_logprobs the count.
void read_chat_logprobs(FieldReader& fields, const RequestLimits& limits, GenerationOptions& options) {
  const bool has_logprobs = fields.flag("logprobs", false);
  const auto top = static_cast<int32_t>(fields.integer("top_logprobs", 0, 0, limits.max_logprobs));
  if (fields.get("top_logprobs") && !has_logprobs && top > 0) fields.fail("top_logprobs", "needs logprobs to be true");
  if (has_logprobs) options.sampling.num_logprobs = top;
}

constexpr size_t kMaxNamesLogged = 8;
constexpr size_t kMaxNameBytesLogged = 40;

// What looks like a parameter's name; anything else might be what somebody wrote.
std::string_view loggable_name(std::string_view name) {
  const bool is_plain = !name.empty() && name.size() <= kMaxNameBytesLogged &&
                        std::ranges::all_of(name, [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  return is_plain ? name : "?";
}

// Who wonders why a field does nothing finds it in the log.
void log_unread(const FieldReader& fields) {
  std::string names;
  const std::vector<std::string_view> unread = fields.unread();
  for (size_t i = 0; i < std::min(unread.size(), kMaxNamesLogged); ++i) {
    names += (i > 0 ? "," : "") + std::string(loggable_name(unread[i]));
  }
  if (!names.empty()) log_line(LogLevel::kDebug, "api/openai", "fields are ignored", {{"names", names}});
}

template <class T>
Parsed<T> result_of(const FieldReader& fields, T request) {
  if (fields.has_failed()) return fields.error();
  log_unread(fields);
  return request;
}

}  // namespace

Parsed<ChatRequest> parse_chat_request(std::string_view body, const RequestLimits& limits,
                                       const SamplingDefaults& defaults) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  ChatRequest request;
  request.options = read_options(fields, limits, defaults);
  read_chat_logprobs(fields, limits, request.options);
  request.prompt = read_chat_prompt(fields);
  if (request.options.max_tokens == 0u && request.options.prompt_logprobs < 0) {
    fields.fail("max_tokens", "expected an integer not below 1 (0 only with prompt_logprobs), got 0");
  }
  if (fields.flag("echo", false)) fields.fail("echo", "is not supported for chat");
  check_copies(fields, request.options, 1);
  return result_of(fields, std::move(request));
}

Parsed<CompletionRequest> parse_completion_request(std::string_view body, const RequestLimits& limits,
                                                   const SamplingDefaults& defaults) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  CompletionRequest request;
  request.options = read_options(fields, limits, defaults);
  request.prompts = read_prompts(fields, "prompt", limits);
  request.echo = fields.flag("echo", false);
  request.options.sampling.num_logprobs = static_cast<int32_t>(fields.integer("logprobs", -1, 0, limits.max_logprobs));
  if (request.options.max_tokens == 0u && !request.echo && request.options.prompt_logprobs < 0) {
    fields.fail("max_tokens", "expected an integer not below 1 (0 only with echo or prompt_logprobs), got 0");
  }
  if (request.prompts.size() * request.options.num_choices > limits.max_answers) {
    fields.fail("n", fmt::format("{} prompts with n = {} are over {} answers", request.prompts.size(),
                                 request.options.num_choices, limits.max_answers));
  }
  check_copies(fields, request.options, request.prompts.size());
  if (fields.get("suffix")) request.suffix = fields.text("suffix");
  if (request.suffix && request.echo) fields.fail("suffix", "cannot be had with echo");
  if (request.suffix && request.options.truncate_prompt_tokens) {
    fields.fail("suffix", "cannot be had with truncate_prompt_tokens");
  }
  return result_of(fields, std::move(request));
}

Parsed<EmbeddingRequest> parse_embedding_request(std::string_view body, const RequestLimits& limits,
                                                 sched::Pooling pooling) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  EmbeddingRequest request;
  request.input.options = read_prompt_options(fields);
  request.input.options.max_tokens = 0;
  request.input.prompts = read_prompts(fields, "input", limits);
  request.pooling = pooling;
  if (fields.get("pooling")) {
    const std::string name = fields.text("pooling");
    if (name != "last" && name != "mean") fields.fail("pooling", "expected \"last\" or \"mean\"");
    request.pooling = name == "mean" ? sched::Pooling::kMean : sched::Pooling::kLast;
  }
  if (fields.get("encoding_format")) {
    const std::string name = fields.text("encoding_format");
    if (name != "float" && name != "base64") fields.fail("encoding_format", "expected \"float\" or \"base64\"");
    request.is_base64 = name == "base64";
  }
  request.normalizes = fields.flag("normalize", true);
  // Only models that were trained for it have embeddings whose first part is one as well.
  if (fields.get("dimensions")) fields.fail("dimensions", "is not supported: this model's embeddings have one size");
  return result_of(fields, std::move(request));
}

Result<SamplingDefaults> parse_generation_config(std::string_view json) {
  TRY_ASSIGN(const JsonValue config, JsonValue::parse(json));
  if (!config.if_object()) return Error{ErrorCode::kCorrupt, "expected a JSON object"};
  FieldReader fields(config);
  const SamplingDefaults defaults = read_defaults(fields, {});
  if (fields.has_failed()) return Error{ErrorCode::kCorrupt, fields.error().message};
  return defaults;
}

Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  TokenizeRequest request;
  request.model = fields.text("model");
  const std::string_view name = fields.get("prompt") || !fields.get("content") ? "prompt" : "content";
  if (fields.get(name))
    request.text = fields.text(name);
  else if (fields.get("messages"))
    request.chat = read_chat_prompt(fields);
  else
    fields.fail("prompt", "is missing, and so is messages");
  request.add_special_tokens = fields.flag("add_special_tokens", request.text.has_value());
  request.parse_special = fields.optional_flag("parse_special");
  request.return_token_strs = fields.flag("return_token_strs", false);
  return result_of(fields, std::move(request));
}

Parsed<DetokenizeRequest> parse_detokenize_request(std::string_view body, const RequestLimits& limits) {
  auto json = parse_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&json)) return *error;
  FieldReader fields(std::get<JsonValue>(json));
  DetokenizeRequest request;
  request.model = fields.text("model");
  if (!fields.get("tokens")) fields.fail("tokens", "is missing");
  request.tokens = fields.token_ids("tokens", limits.max_model_len, limits.vocab_size);
  return result_of(fields, std::move(request));
}

}  // namespace tandem::openai
