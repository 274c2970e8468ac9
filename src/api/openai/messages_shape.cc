#include "api/openai/messages_shape.h"

#include <utility>

#include "api/openai/tool_use.h"
#include "base/json.h"
#include "serve/text/json_scanner.h"

namespace tandem::openai {
namespace {

using Kind = text::AnswerPiece::Kind;

// input_tokens leaves out what came from the cache.
void write_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object();
  json.key("input_tokens").unsigned_integer(usage.num_prompt_tokens - usage.num_cached_tokens);
  json.key("cache_creation_input_tokens").integer(0);
  json.key("cache_read_input_tokens").unsigned_integer(usage.num_cached_tokens);
  json.key("output_tokens").unsigned_integer(usage.num_completion_tokens).end_object();
}

// "stop_reason" and "stop_sequence".
void write_end(JsonWriter& json, const ChoiceEnd& end) {
  const std::string* stop = end.stop_reason.if_string();
  const std::string_view reason = end.reason == "tool_calls" ? "tool_use"
                                  : end.reason == "length"   ? "max_tokens"
                                  : stop                     ? "stop_sequence"
                                                             : "end_turn";
  json.key("stop_reason").string(reason).key("stop_sequence");
  if (reason == "stop_sequence")
    json.string(*stop);
  else
    json.null();
}

// `input` has to be an object: what a model did not get to an end, or wrong, is wrapped.
void write_input(JsonWriter& json, const std::string& arguments) {
  auto value = JsonValue::parse(text::with_readable_numbers(arguments));
  if (value && value->if_object())
    json.raw(arguments);
  else
    json.begin_object().key("INVALID_JSON").string(arguments).end_object();
}

std::string_view type_of(const ApiError& error) {
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return error.status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string text_block(std::string_view text) {
  return JsonWriter().begin_object().key("type").string("text").key("text").string(text).end_object().take();
}

}  // namespace

std::string messages_error_json(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("type").string("error").key("error").begin_object();
  json.key("type").string(type_of(error)).key("message").string(error.message);
  return json.end_object().end_object().take();
}

void MessagesShape::begin_message(JsonWriter& json) const {
  json.begin_object().key("id").string(head_.id).key("type").string("message").key("role").string("assistant");
  json.key("model").string(head_.model).key("content").begin_array();
}

std::string MessagesShape::call_id(size_t call) const {
  return tool_call_id("toolu_", head_.id, 0, call, options_.tool_calls->has_short_ids);
}

std::string MessagesShape::whole(const std::vector<WholeChoice>& choices, const Usage& usage) {
  const WholeChoice& choice = choices.front();
  JsonWriter json;
  begin_message(json);
  size_t num_calls = 0;
  for (const text::AnswerPart& part : choice.parts) {
    if (!part.is_call) {
      json.raw(text_block(part.text));
      continue;
    }
    json.begin_object().key("type").string("tool_use").key("id").string(call_id(num_calls++));
    json.key("name").string(part.name).key("input");
    write_input(json, part.text);
    json.end_object();
  }
  if (choice.parts.empty() && !choice.text.empty()) json.raw(text_block(choice.text));
  json.end_array();
  write_end(json, choice.end);
  json.key("usage");
  write_usage(json, usage);
  return json.end_object().take();
}

std::string MessagesShape::role_event(size_t, const Usage& usage, const std::vector<TokenId>*) {
  JsonWriter json;
  json.begin_object().key("type").string("message_start").key("message");
  begin_message(json);
  json.end_array().key("stop_reason").null().key("stop_sequence").null().key("usage");
  write_usage(json, usage);
  json.end_object().end_object();
  return sse_event("message_start", json.text());
}

std::string MessagesShape::begin_block(Block kind, std::string_view block_json) {
  std::string events = end_block();
  open_ = kind;
  JsonWriter json;
  json.begin_object().key("type").string("content_block_start").key("index").unsigned_integer(num_blocks_++);
  json.key("content_block").raw(block_json).end_object();
  return events + sse_event("content_block_start", json.text());
}

std::string MessagesShape::end_block() {
  if (std::exchange(open_, Block::kNone) == Block::kNone) return {};
  JsonWriter json;
  json.begin_object().key("type").string("content_block_stop").key("index").unsigned_integer(num_blocks_ - 1);
  return sse_event("content_block_stop", json.end_object().text());
}

std::string MessagesShape::delta_event(std::string_view delta_json) const {
  JsonWriter json;
  json.begin_object().key("type").string("content_block_delta").key("index").unsigned_integer(num_blocks_ - 1);
  return sse_event("content_block_delta", json.key("delta").raw(delta_json).end_object().text());
}

std::string MessagesShape::text_events(std::string_view text) {
  if (text.empty()) return {};
  std::string events = open_ == Block::kText ? std::string() : begin_block(Block::kText, text_block({}));
  JsonWriter json;
  json.begin_object().key("type").string("text_delta").key("text").string(text).end_object();
  return events + delta_event(json.text());
}

std::string MessagesShape::tokens_event(size_t, std::string_view text, std::span<const ShownToken>, const Usage&,
                                        const std::vector<TokenId>*) {
  return text_events(text);
}

std::string MessagesShape::pieces_events(size_t, const ShownToken& token, const Usage&) {
  std::string events;
  for (const text::AnswerPiece& piece : token.pieces) {
    JsonWriter json;
    json.begin_object().key("type");
    if (piece.kind == Kind::kContent) {
      events += text_events(piece.text);
    } else if (piece.kind == Kind::kCall) {
      json.string("tool_use").key("id").string(call_id(piece.call)).key("name").string(piece.text);
      json.key("input").begin_object().end_object().end_object();
      events += begin_block(Block::kCall, json.text());
    } else {
      json.string("input_json_delta").key("partial_json").string(piece.text).end_object();
      events += delta_event(json.text());
    }
  }
  return events;
}

std::string MessagesShape::end_event(size_t, const ChoiceEnd& end, const Usage&) {
  JsonWriter json;
  json.begin_object();
  write_end(json, end);
  end_json_ = json.end_object().take();
  return end_block();
}

std::string MessagesShape::last_events(const Usage& usage) {
  JsonWriter json;
  json.begin_object().key("type").string("message_delta").key("delta").raw(end_json_).key("usage");
  write_usage(json, usage);
  return sse_event("message_delta", json.end_object().text()) + sse_event("message_stop", R"({"type":"message_stop"})");
}

std::string MessagesShape::error_events(const ApiError& error) {
  return sse_event("error", messages_error_json(error));
}

std::string MessagesShape::ping() const { return sse_event("ping", R"({"type":"ping"})"); }

}  // namespace tandem::openai
