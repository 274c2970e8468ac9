#pragma once
// ResponsesShape: answers of OpenAI's Responses API: items, a message's text or a function call each. Source: its
// public reference.

#include <string>
#include <vector>

#include "api/openai/reply_shape.h"

namespace tandem::openai {

class ResponsesShape final : public ReplyShape {
 public:
  // `options` outlives the shape.
  ResponsesShape(ReplyHead head, const GenerationOptions& options) : head_(std::move(head)), options_(options) {}

  std::string whole(const std::vector<WholeChoice>& choices, const Usage& usage) override;
  std::string role_event(size_t choice, const Usage& usage, const std::vector<TokenId>* prompt) override;
  std::string tokens_event(size_t choice, std::string_view text, std::span<const ShownToken> tokens, const Usage& usage,
                           const std::vector<TokenId>* prompt) override;
  std::string pieces_events(size_t choice, const ShownToken& token, const Usage& usage) override;
  std::string end_event(size_t choice, const ChoiceEnd& end, const Usage& usage) override;
  std::string last_events(const Usage& usage) override;
  std::string error_events(const ApiError& error) override;

 private:
  // How a response or an item stands.
  enum class Status : uint8_t { kInProgress, kCompleted, kIncomplete, kFailed };

  // An event with its number; `json` is an open object that has its other members already.
  std::string event(std::string_view type, JsonWriter& json);
  // Begins an event's object with the place of the item that is being written.
  JsonWriter begin_item_event(std::string_view type, bool has_content_index) const;
  std::string take_piece(const text::AnswerPiece& piece);
  std::string begin_item();
  std::string end_item(Status status);
  std::string response(Status status, const Usage* usage, const ApiError* error) const;
  std::string item(size_t index, Status status) const;
  std::string item_id(size_t index) const;
  std::string call_id(size_t index) const;

  const ReplyHead head_;
  const GenerationOptions& options_;
  std::vector<text::AnswerPart> items_;  // so far
  bool is_open_ = false;                 // the last one is
  bool is_cut_ = false;                  // the answer came to the limit of its length
  uint64_t num_events_ = 0;
};

}  // namespace tandem::openai
