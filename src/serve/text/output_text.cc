#include "serve/text/output_text.h"

namespace tandem::text {

OutputText::OutputText(const Tokenizer& tokenizer, const OutputTextOptions& options)
    : decoder_(tokenizer, options.skip_special), matcher_(options.stops, options.include_stop) {}

std::string_view OutputText::push(TokenId id, bool may_stop) {
  const std::string_view decoded = decoder_.push(id);
  num_decoded_bytes_ += decoded.size();
  return matcher_.push(decoded, may_stop);
}

std::string_view OutputText::finish() {
  // The unfinished character is U+FFFD now. The end has its reason already, so nothing is cut off any more.
  rest_ = matcher_.push(decoder_.finish(), false);
  rest_ += matcher_.finish();
  return rest_;
}

}  // namespace tandem::text
