#pragma once
// ToolCallReader: ToolCallParser over a choice's tokens. A marker that is a control token may give no text, and what
// gives text may be held back for a stop string; so it is kept by its place in the decoded text. One choice, one
// thread.

#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "serve/text/tool_call_parser.h"

namespace tandem::text {

class ToolCallReader {
 public:
  // skip_special: as the decoder of the text has it.
  ToolCallReader(std::shared_ptr<const ToolCallRules> rules, bool skip_special);

  // This token has been decoded; num_decoded_bytes: of the text with it, see OutputText.
  void note_token(TokenId id, uint64_t num_decoded_bytes);
  // The next part of the decoded text.
  void push(std::string_view text, std::vector<AnswerPiece>& out);
  // After the last part.
  void finish(std::vector<AnswerPiece>& out);

  bool is_inside_call() const { return parser_.is_inside_call(); }
  bool has_calls() const { return parser_.num_calls() > 0; }

 private:
  struct Found {
    const ToolMarker* marker = nullptr;
    uint64_t begin = 0;       // in the decoded text
    uint64_t size_bytes = 0;  // of its text there; 0: hidden
  };

  std::shared_ptr<const ToolCallRules> rules_;
  bool skip_special_;
  ToolCallParser parser_;
  std::deque<Found> found_;  // not reached yet
  uint64_t num_pushed_bytes_ = 0;
};

}  // namespace tandem::text
