#include "api/openai/reply_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/openai/prompt_logprobs.h"
#include "api/openai/tool_use.h"
#include "base/utf8.h"

namespace tandem::openai {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

// JSON has no infinity; clients expect a number.
float finite_logprob(float logprob) { return std::max(logprob, -9999.0f); }

void write_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object();
  json.key("prompt_tokens").unsigned_integer(usage.num_prompt_tokens);
  json.key("completion_tokens").unsigned_integer(usage.num_completion_tokens);
  json.key("total_tokens").unsigned_integer(usage.num_prompt_tokens + usage.num_completion_tokens);
  json.key("prompt_tokens_details").begin_object();
  json.key("cached_tokens").unsigned_integer(usage.num_cached_tokens).end_object();
  json.key("completion_tokens_details").begin_object().key("reasoning_tokens").integer(0).end_object();
  json.end_object();
}

void write_ids(JsonWriter& json, std::span<const TokenId> ids) {
  json.begin_array();
  for (TokenId id : ids) json.integer(id);
  json.end_array();
}

std::string event(std::string_view json) { return sse_event({}, json); }

}  // namespace

void ReplyFormat::begin(JsonWriter& json, bool is_chunk) const {
  const std::string_view object = !head_.is_chat ? "text_completion"
                                  : is_chunk     ? "chat.completion.chunk"
                                                 : "chat.completion";
  json.begin_object().key("id").string(head_.id).key("object").string(object);
  json.key("created").integer(head_.created).key("model").string(head_.model);
  if (!head_.system_fingerprint.empty()) json.key("system_fingerprint").string(head_.system_fingerprint);
  json.key("choices").begin_array();
}

std::string ReplyFormat::finish_chunk(JsonWriter& json, const Usage& usage, const std::vector<TokenId>* prompt) const {
  json.end_array();
  if (prompt) {
    json.key("prompt_token_ids");
    write_ids(json, *prompt);
  }
  if (options_.continuous_usage) {
    json.key("usage");
    write_usage(json, usage);
  } else if (options_.include_usage) {
    json.key("usage").null();
  }
  return event(json.end_object().text());
}

std::string ReplyFormat::role_event(size_t choice, const Usage& usage, const std::vector<TokenId>* prompt) {
  JsonWriter json;
  begin(json, true);
  json.begin_object().key("index").unsigned_integer(choice);
  json.key("delta").begin_object().key("role").string("assistant").key("content").string("").end_object();
  json.key("logprobs").null().key("finish_reason").null().end_object();
  return finish_chunk(json, usage, prompt);
}

std::string ReplyFormat::tokens_event(size_t choice, std::string_view text, std::span<const ShownToken> tokens,
                                      const Usage& usage, const std::vector<TokenId>* prompt) {
  JsonWriter json;
  begin(json, true);
  json.begin_object().key("index").unsigned_integer(choice);
  if (head_.is_chat)
    json.key("delta").begin_object().key("content").string(text).end_object();
  else
    json.key("text").string(text);
  return finish_tokens(json, tokens, usage, prompt);
}

std::string ReplyFormat::pieces_events(size_t choice, const ShownToken& token, const Usage& usage) {
  std::string events;
  const auto add = [&](const text::AnswerPiece* piece, std::span<const ShownToken> tokens) {
    JsonWriter json;
    begin(json, true);
    json.begin_object().key("index").unsigned_integer(choice).key("delta").begin_object();
    if (piece) write_piece(json, choice, *piece);
    json.end_object();
    events += finish_tokens(json, tokens, usage, nullptr);
  };
  if (token.pieces.empty() && (token.logprob || options_.return_token_ids)) add(nullptr, {&token, 1});
  // The token itself stands in its first chunk.
  for (size_t i = 0; i < token.pieces.size(); ++i) {
    add(&token.pieces[i], i == 0 ? std::span(&token, 1) : std::span<const ShownToken>());
  }
  return events;
}

std::string ReplyFormat::call_id(size_t choice, size_t call) const {
  return tool_call_id("call_", head_.id, choice, call, options_.tool_calls->has_short_ids);
}

void ReplyFormat::write_piece(JsonWriter& json, size_t choice, const text::AnswerPiece& piece) const {
  if (piece.kind == text::AnswerPiece::Kind::kContent) {
    json.key("content").string(piece.text);
    return;
  }
  const bool is_start = piece.kind == text::AnswerPiece::Kind::kCall;
  json.key("tool_calls").begin_array().begin_object().key("index").unsigned_integer(piece.call);
  if (is_start) json.key("id").string(call_id(choice, piece.call)).key("type").string("function");
  json.key("function").begin_object();
  if (is_start) json.key("name").string(piece.text);
  json.key("arguments").string(is_start ? std::string_view() : piece.text).end_object();
  json.end_object().end_array();
}

std::string ReplyFormat::finish_tokens(JsonWriter& json, std::span<const ShownToken> tokens, const Usage& usage,
                                       const std::vector<TokenId>* prompt) const {
  json.key("logprobs");
  write_logprobs(json, tokens);
  json.key("finish_reason").null();
  if (options_.return_token_ids) {
    json.key("token_ids").begin_array();
    for (const ShownToken& token : tokens) {
      if (token.id >= 0) json.integer(token.id);
    }
    json.end_array();
  }
  if (prompt) {
    json.key("prompt_token_ids");
    write_ids(json, *prompt);
  }
  json.end_object();
  return finish_chunk(json, usage);
}

std::string ReplyFormat::end_event(size_t choice, const ChoiceEnd& end, const Usage& usage) {
  JsonWriter json;
  begin(json, true);
  json.begin_object().key("index").unsigned_integer(choice);
  if (head_.is_chat)
    json.key("delta").begin_object().end_object();
  else
    json.key("text").string("");
  json.key("logprobs").null().key("finish_reason").string(end.reason);
  json.key("stop_reason").value(end.stop_reason).end_object();
  return finish_chunk(json, usage);
}

std::string ReplyFormat::usage_event(const Usage& usage) const {
  JsonWriter json;
  begin(json, true);
  json.end_array().key("usage");
  write_usage(json, usage);
  return event(json.end_object().text());
}

std::string ReplyFormat::last_events(const Usage& usage) {
  return (options_.include_usage ? usage_event(usage) : std::string()) + std::string(kDone);
}

std::string ReplyFormat::error_events(const ApiError& error) { return event(error_json(error)) + std::string(kDone); }

void ReplyFormat::write_message(JsonWriter& json, size_t index, const WholeChoice& choice) const {
  const bool has_calls = std::ranges::any_of(choice.parts, &text::AnswerPart::is_call);
  json.key("message").begin_object().key("role").string("assistant").key("content");
  if (has_calls && choice.text.empty())
    json.null();
  else
    json.string(choice.text);
  if (has_calls) json.key("tool_calls").begin_array();
  size_t num_calls = 0;
  for (const text::AnswerPart& part : choice.parts) {
    if (!part.is_call) continue;
    json.begin_object().key("id").string(call_id(index, num_calls++)).key("type").string("function");
    json.key("function").begin_object().key("name").string(part.name);
    json.key("arguments").string(part.text).end_object().end_object();
  }
  if (has_calls) json.end_array();
  json.end_object();
}

std::string ReplyFormat::whole(const std::vector<WholeChoice>& choices, const Usage& usage) {
  JsonWriter json;
  begin(json, false);
  for (size_t i = 0; i < choices.size(); ++i) {
    const WholeChoice& choice = choices[i];
    json.begin_object().key("index").unsigned_integer(i);
    if (head_.is_chat)
      write_message(json, i, choice);
    else
      json.key("text").string(choice.text);
    json.key("logprobs");
    write_logprobs(json, choice.tokens);
    json.key("finish_reason").string(choice.end.reason).key("stop_reason").value(choice.end.stop_reason);
    if (options_.return_token_ids) {
      json.key("token_ids");
      write_ids(json, choice.ids);
    }
    if (options_.return_token_ids && !head_.is_chat) {
      json.key("prompt_token_ids");
      write_ids(json, *choice.prompt);
    }
    if (choice.prompt_logprobs && !head_.is_chat) write_prompt_logprobs(json, tokenizer_, *choice.prompt_logprobs);
    json.end_object();
  }
  json.end_array().key("usage");
  write_usage(json, usage);
  if (choices.front().prompt_logprobs && head_.is_chat) {
    write_prompt_logprobs(json, tokenizer_, *choices.front().prompt_logprobs);
  }
  if (options_.return_token_ids && head_.is_chat) {
    json.key("prompt_token_ids");
    write_ids(json, *choices.front().prompt);
  }
  return json.end_object().take();
}

void ReplyFormat::write_logprobs(JsonWriter& json, std::span<const ShownToken> tokens) const {
  if (options_.sampling.num_logprobs < 0)
    json.null();
  else if (head_.is_chat)
    write_chat_logprobs(json, tokens);
  else
    write_completion_logprobs(json, tokens);
}

void ReplyFormat::write_chat_token(JsonWriter& json, TokenId id, float logprob) const {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  json.begin_object().key("token");
  if (options_.tokens_as_ids)
    json.string(fmt::format("token_id:{}", id));
  else
    json.string(bytes);
  json.key("logprob").number(finite_logprob(logprob)).key("bytes").begin_array();
  for (char byte : bytes) json.integer(static_cast<unsigned char>(byte));
  json.end_array();
}

void ReplyFormat::write_chat_logprobs(JsonWriter& json, std::span<const ShownToken> tokens) const {
  json.begin_object().key("content").begin_array();
  for (const ShownToken& token : tokens) {
    if (!token.logprob) continue;
    write_chat_token(json, token.id, token.logprob->logprob);
    json.key("top_logprobs").begin_array();
    for (const auto& [id, logprob] : token.logprob->top) {
      write_chat_token(json, id, logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

// A token that is no whole text by itself is named by its bytes, so that two of them never share a name.
std::string ReplyFormat::completion_name(TokenId id) const {
  if (options_.tokens_as_ids) return fmt::format("token_id:{}", id);
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (unsigned char byte : bytes) name += fmt::format("\\x{:02x}", byte);
  return name;
}

// The best ones and the token itself, which evaluation harnesses look up by its name.
void ReplyFormat::write_top(JsonWriter& json, const ShownToken& token) const {
  if (!token.logprob) {
    json.null();
    return;
  }
  std::vector<std::string> written;
  const auto write = [&](TokenId id, float logprob) {
    std::string name = completion_name(id);
    if (std::find(written.begin(), written.end(), name) != written.end()) return;
    json.key(name).number(finite_logprob(logprob));
    written.push_back(std::move(name));
  };
  json.begin_object();
  for (const auto& [id, logprob] : token.logprob->top) write(id, logprob);
  write(token.id, token.logprob->logprob);
  json.end_object();
}

void ReplyFormat::write_completion_logprobs(JsonWriter& json, std::span<const ShownToken> tokens) const {
  std::vector<const ShownToken*> real;
  for (const ShownToken& token : tokens) {
    if (token.id >= 0) real.push_back(&token);
  }
  json.begin_object().key("tokens").begin_array();
  for (const ShownToken* token : real) json.string(completion_name(token->id));
  json.end_array().key("token_logprobs").begin_array();
  for (const ShownToken* token : real) {
    if (token->logprob)
      json.number(finite_logprob(token->logprob->logprob));
    else
      json.null();
  }
  json.end_array().key("top_logprobs").begin_array();
  for (const ShownToken* token : real) write_top(json, *token);
  json.end_array().key("text_offset").begin_array();
  for (const ShownToken* token : real) json.unsigned_integer(token->text_offset);
  json.end_array().end_object();
}

}  // namespace tandem::openai
