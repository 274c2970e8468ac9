#pragma once
// TextStopRule: tells the scheduler, which knows no text, when a choice's stop string is complete. One per
// choice; engine thread.

#include "serve/sched/stop_rule.h"
#include "serve/text/output_text.h"

namespace tandem::text {

class TextStopRule : public sched::StopRule {
 public:
  // Keeps what it needs of the tokenizer. prompt: seeds the decoder, as the one that makes the shown text.
  TextStopRule(const Tokenizer& tokenizer, const OutputTextOptions& options, const std::vector<TokenId>& prompt);

  bool push(TokenId token, bool may_stop) override;

 private:
  OutputText text_;
};

}  // namespace tandem::text
