#pragma once
// MessagesShape: answers of Anthropic's Messages API: content blocks of text and of tool use. Source: its public
// reference.

#include <string>

#include "api/openai/reply_shape.h"

namespace tandem::openai {

class MessagesShape final : public ReplyShape {
 public:
  // `options` outlives the shape.
  MessagesShape(ReplyHead head, const GenerationOptions& options) : head_(std::move(head)), options_(options) {}

  std::string whole(const std::vector<WholeChoice>& choices, const Usage& usage) override;
  std::string role_event(size_t choice, const Usage& usage, const std::vector<TokenId>* prompt) override;
  std::string tokens_event(size_t choice, std::string_view text, std::span<const ShownToken> tokens, const Usage& usage,
                           const std::vector<TokenId>* prompt) override;
  std::string pieces_events(size_t choice, const ShownToken& token, const Usage& usage) override;
  std::string end_event(size_t choice, const ChoiceEnd& end, const Usage& usage) override;
  std::string last_events(const Usage& usage) override;
  std::string error_events(const ApiError& error) override;
  std::string ping() const override;

 private:
  enum class Block : uint8_t { kNone, kText, kCall };

  void begin_message(JsonWriter& json) const;
  std::string call_id(size_t call) const;
  std::string text_events(std::string_view text);
  std::string begin_block(Block kind, std::string_view block_json);
  std::string end_block();
  std::string delta_event(std::string_view delta_json) const;

  const ReplyHead head_;
  const GenerationOptions& options_;
  Block open_ = Block::kNone;
  size_t num_blocks_ = 0;  // begun
  std::string end_json_;   // how the message ended: goes out with the final usage
};

// {"type":"error","error":{..}}
std::string messages_error_json(const ApiError& error);

}  // namespace tandem::openai
