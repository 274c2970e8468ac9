#pragma once
// ReplyFormat: the JSON of answers, whole or as server-sent events, of chat and of plain completions.
//
// Remembers nothing. Source of the shapes: the public OpenAI API; token_ids, prompt_token_ids and stop_reason as
// vLLM has them.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai/reply_shape.h"

namespace tandem::openai {

class ReplyFormat final : public ReplyShape {
 public:
  ReplyFormat(const text::Tokenizer& tokenizer, ReplyHead head, const GenerationOptions& options)
      : tokenizer_(tokenizer), head_(std::move(head)), options_(options) {}

  std::string whole(const std::vector<WholeChoice>& choices, const Usage& usage) override;

  // The prompt's ids stand in the choice, but in a chat beside the choices, which all have the same prompt.
  std::string role_event(size_t choice, const Usage& usage, const std::vector<TokenId>* prompt) override;
  std::string tokens_event(size_t choice, std::string_view text, std::span<const ShownToken> tokens, const Usage& usage,
                           const std::vector<TokenId>* prompt) override;
  std::string pieces_events(size_t choice, const ShownToken& token, const Usage& usage) override;
  std::string end_event(size_t choice, const ChoiceEnd& end, const Usage& usage) override;
  std::string last_events(const Usage& usage) override;
  std::string error_events(const ApiError& error) override;

 private:
  void begin(JsonWriter& json, bool is_chunk) const;
  std::string usage_event(const Usage& usage) const;
  // After the delta or text: what else a choice's chunk says of these tokens, and the end of the chunk.
  std::string finish_tokens(JsonWriter& json, std::span<const ShownToken> tokens, const Usage& usage,
                            const std::vector<TokenId>* prompt) const;
  void write_piece(JsonWriter& json, size_t choice, const text::AnswerPiece& piece) const;
  void write_message(JsonWriter& json, size_t index, const WholeChoice& choice) const;
  std::string call_id(size_t choice, size_t call) const;
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
