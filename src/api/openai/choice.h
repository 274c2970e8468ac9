#pragma once
// Choice: one of the answers of a request, from tokens to what the client sees of them. I/O thread.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai/request.h"
#include "serve/sched/request.h"
#include "serve/text/output_text.h"
#include "serve/text/tool_call_reader.h"

namespace tandem::openai {

// A token and the text that may be shown once it is there (perhaps none yet, perhaps of earlier tokens).
struct ShownToken {
  TokenId id = 0;
  std::string text;                            // content, without calls of tools
  std::vector<text::AnswerPiece> pieces;       // content and calls in order, where the answer may call tools
  std::optional<sched::TokenLogprob> logprob;  // when asked for
  size_t text_offset = 0;                      // in code points, where this token's own text begins; with logprobs only
};

size_t num_code_points(std::string_view utf8);

class Choice {
 public:
  // first_offset: code points of text before the first token (the echoed prompt).
  Choice(const text::Tokenizer& tokenizer, const GenerationOptions& options, const std::vector<TokenId>& prompt,
         size_t first_offset);

  // The news of one step, in order.
  std::vector<ShownToken> take(sched::ChoiceDelta delta);

  bool is_finished() const { return finish_.has_value(); }
  bool is_cancelled() const { return finish_ && finish_->reason == sched::FinishReason::kCancelled; }
  std::string_view finish_reason() const;  // "stop", "length", "abort"
  // The same, but "tool_calls" for an answer that ended by itself and calls tools. What the client asked to stop at
  // ends no call: with half of its arguments it is "stop".
  std::string_view answer_reason() const;
  // The stop string or the id that stopped it; JSON null when it was the model's own end or the limit.
  JsonValue stop_reason() const;
  uint64_t num_tokens() const { return num_tokens_; }

 private:
  std::string shown_text(const sched::ChoiceDelta& delta, size_t index);
  void finish_text(std::vector<ShownToken>& shown);

  const GenerationOptions& options_;
  text::OutputText text_;
  std::optional<text::ToolCallReader> calls_;
  std::optional<text::StreamDecoder> offset_decoder_;  // what the tokens say, before stop strings hold text back
  size_t offset_ = 0;
  uint64_t num_tokens_ = 0;
  std::optional<sched::Finish> finish_;
  bool ends_inside_call_ = false;
};

}  // namespace tandem::openai
