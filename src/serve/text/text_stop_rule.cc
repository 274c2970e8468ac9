#include "serve/text/text_stop_rule.h"

namespace tandem::text {

TextStopRule::TextStopRule(const Tokenizer& tokenizer, const OutputTextOptions& options,
                           const std::vector<TokenId>& prompt)
    : text_(tokenizer, options) {
  text_.seed(prompt);
}

bool TextStopRule::push(TokenId token, bool may_stop) {
  text_.push(token, may_stop);
  return text_.has_stopped();
}

}  // namespace tandem::text
