#include "api/openai/responses_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/openai/tool_use.h"

namespace tandem::openai {
namespace {

using Kind = text::AnswerPiece::Kind;

void write_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object().key("input_tokens").unsigned_integer(usage.num_prompt_tokens);
  json.key("input_tokens_details").begin_object();
  json.key("cached_tokens").unsigned_integer(usage.num_cached_tokens).end_object();
  json.key("output_tokens").unsigned_integer(usage.num_completion_tokens);
  json.key("output_tokens_details").begin_object().key("reasoning_tokens").integer(0).end_object();
  json.key("total_tokens").unsigned_integer(usage.num_prompt_tokens + usage.num_completion_tokens).end_object();
}

void write_text_part(JsonWriter& json, std::string_view text) {
  json.begin_object().key("type").string("output_text").key("text").string(text);
  json.key("annotations").begin_array().end_array().key("logprobs").begin_array().end_array().end_object();
}

}  // namespace

std::string ResponsesShape::item_id(size_t index) const {
  return tool_call_id(items_[index].is_call ? "fc_" : "msg_", head_.id, 1, index, false);
}

std::string ResponsesShape::call_id(size_t index) const {
  const auto is_call = [](const text::AnswerPart& part) { return part.is_call; };
  const auto call = std::count_if(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(index), is_call);
  return tool_call_id("call_", head_.id, 0, static_cast<size_t>(call), options_.tool_calls->has_short_ids);
}

std::string ResponsesShape::item(size_t index, Status status) const {
  const text::AnswerPart& part = items_[index];
  const bool is_open = status == Status::kInProgress;
  JsonWriter json;
  json.begin_object().key("type").string(part.is_call ? "function_call" : "message").key("id").string(item_id(index));
  json.key("status").string(is_open ? "in_progress" : status == Status::kCompleted ? "completed" : "incomplete");
  if (part.is_call) {
    json.key("call_id").string(call_id(index)).key("name").string(part.name);
    json.key("arguments").string(is_open ? std::string_view() : part.text);
  } else {
    json.key("role").string("assistant").key("content").begin_array();
    if (!is_open) write_text_part(json, part.text);
    json.end_array();
  }
  return json.end_object().take();
}

// The response as it stands; what is in it is shown once it is not in progress any more.
std::string ResponsesShape::response(Status status, const Usage* usage, const ApiError* error) const {
  constexpr std::string_view kNames[] = {"in_progress", "completed", "incomplete", "failed"};
  JsonWriter json;
  json.begin_object().key("id").string(head_.id).key("object").string("response");
  json.key("created_at").integer(head_.created).key("status").string(kNames[static_cast<size_t>(status)]);
  json.key("background").boolean(false).key("error");
  if (error)
    json.begin_object().key("code").string("server_error").key("message").string(error->message).end_object();
  else
    json.null();
  json.key("incomplete_details");
  if (status == Status::kIncomplete)
    json.begin_object().key("reason").string("max_output_tokens").end_object();
  else
    json.null();
  json.key("model").string(head_.model).key("output").begin_array();
  for (size_t i = 0; status != Status::kInProgress && i < items_.size(); ++i) {
    const bool is_cut = i + 1 == items_.size() && status != Status::kCompleted;
    json.raw(item(i, is_cut ? Status::kIncomplete : Status::kCompleted));
  }
  json.end_array();
  for (const auto& [name, value] : head_.echo) json.key(name).value(value);
  json.key("usage");
  if (usage)
    write_usage(json, *usage);
  else
    json.null();
  return json.end_object().take();
}

std::string ResponsesShape::whole(const std::vector<WholeChoice>& choices, const Usage& usage) {
  const WholeChoice& choice = choices.front();
  items_ = choice.parts;
  if (items_.empty() && !choice.text.empty()) items_.push_back({false, {}, choice.text});
  return response(choice.end.reason == "length" ? Status::kIncomplete : Status::kCompleted, &usage, nullptr);
}

std::string ResponsesShape::event(std::string_view type, JsonWriter& json) {
  json.key("sequence_number").unsigned_integer(num_events_++).end_object();
  return sse_event(type, json.text());
}

JsonWriter ResponsesShape::begin_item_event(std::string_view type, bool has_content_index) const {
  JsonWriter json;
  json.begin_object().key("type").string(type).key("item_id").string(item_id(items_.size() - 1));
  json.key("output_index").unsigned_integer(items_.size() - 1);
  if (has_content_index) json.key("content_index").integer(0);
  return json;
}

std::string ResponsesShape::role_event(size_t, const Usage&, const std::vector<TokenId>*) {
  std::string events;
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    JsonWriter json;
    json.begin_object().key("type").string(type);
    json.key("response").raw(response(Status::kInProgress, nullptr, nullptr));
    events += event(type, json);
  }
  return events;
}

std::string ResponsesShape::begin_item() {
  is_open_ = true;
  JsonWriter added;
  added.begin_object().key("type").string("response.output_item.added");
  added.key("output_index").unsigned_integer(items_.size() - 1);
  added.key("item").raw(item(items_.size() - 1, Status::kInProgress));
  std::string events = event("response.output_item.added", added);
  if (items_.back().is_call) return events;
  JsonWriter part = begin_item_event("response.content_part.added", true);
  part.key("part");
  write_text_part(part, {});
  return events + event("response.content_part.added", part);
}

std::string ResponsesShape::end_item(Status status) {
  if (!std::exchange(is_open_, false)) return {};
  std::string events;
  const text::AnswerPart& part = items_.back();
  if (part.is_call) {
    JsonWriter done = begin_item_event("response.function_call_arguments.done", false);
    done.key("name").string(part.name).key("arguments").string(part.text);
    events += event("response.function_call_arguments.done", done);
  } else {
    JsonWriter done = begin_item_event("response.output_text.done", true);
    done.key("text").string(part.text).key("logprobs").begin_array().end_array();
    events += event("response.output_text.done", done);
    JsonWriter part_done = begin_item_event("response.content_part.done", true);
    part_done.key("part");
    write_text_part(part_done, part.text);
    events += event("response.content_part.done", part_done);
  }
  JsonWriter json;
  json.begin_object().key("type").string("response.output_item.done");
  json.key("output_index").unsigned_integer(items_.size() - 1);
  json.key("item").raw(item(items_.size() - 1, status));
  return events + event("response.output_item.done", json);
}

std::string ResponsesShape::take_piece(const text::AnswerPiece& piece) {
  const size_t num_before = items_.size();
  std::string events;
  // The item before is written out with what it had.
  const bool begins =
      piece.kind == Kind::kCall || items_.empty() || items_.back().is_call != (piece.kind == Kind::kArguments);
  if (begins) events += end_item(Status::kCompleted);
  append_piece(items_, piece);
  if (items_.size() > num_before) events += begin_item();
  if (piece.kind == Kind::kCall) return events;
  const bool is_call = piece.kind == Kind::kArguments;
  const std::string_view type = is_call ? "response.function_call_arguments.delta" : "response.output_text.delta";
  JsonWriter json = begin_item_event(type, !is_call);
  json.key("delta").string(piece.text);
  if (!is_call) json.key("logprobs").begin_array().end_array();
  return events + event(type, json);
}

std::string ResponsesShape::tokens_event(size_t, std::string_view text, std::span<const ShownToken>, const Usage&,
                                         const std::vector<TokenId>*) {
  return text.empty() ? std::string() : take_piece({Kind::kContent, 0, std::string(text)});
}

std::string ResponsesShape::pieces_events(size_t, const ShownToken& token, const Usage&) {
  std::string events;
  for (const text::AnswerPiece& piece : token.pieces) events += take_piece(piece);
  return events;
}

std::string ResponsesShape::end_event(size_t, const ChoiceEnd& end, const Usage&) {
  is_cut_ = end.reason == "length";
  return end_item(is_cut_ ? Status::kIncomplete : Status::kCompleted);
}

std::string ResponsesShape::last_events(const Usage& usage) {
  const std::string_view type = is_cut_ ? "response.incomplete" : "response.completed";
  JsonWriter json;
  json.begin_object().key("type").string(type).key("response");
  json.raw(response(is_cut_ ? Status::kIncomplete : Status::kCompleted, &usage, nullptr));
  return event(type, json);
}

std::string ResponsesShape::error_events(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("type").string("response.failed").key("response");
  json.raw(response(Status::kFailed, nullptr, &error));
  return event("response.failed", json);
}

}  // namespace tandem::openai
