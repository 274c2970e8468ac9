#pragma once
// OutputText: what a choice shows of its tokens: decoded, and cut at the first stop string. One choice, one
// thread at a time. Whoever feeds the same tokens gets the same text and the same end, so the engine
// (TextStopRule) and the API agree without talking to each other.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/text/stop_matcher.h"
#include "serve/text/stream_decoder.h"

namespace tandem::text {

struct OutputTextOptions {
  std::vector<std::string> stops;
  bool include_stop = false;  // the stop string belongs to the shown text
  bool skip_special = true;   // special control tokens give no text, and can not complete a stop string
};

class OutputText {
 public:
  // Keeps what it needs of the tokenizer.
  OutputText(const Tokenizer& tokenizer, const OutputTextOptions& options);

  // Before the first push: the prompt, or its tail; see StreamDecoder::seed. A stop string does not begin in it.
  void seed(const std::vector<TokenId>& prompt) { decoder_.seed(prompt); }

  // What may be shown after this token; valid until the next call. may_stop: see StopMatcher::push.
  std::string_view push(TokenId id, bool may_stop = true);
  // The end came without a stop string: the rest. Valid until the next call.
  std::string_view finish();

  // Bytes of the decoded text so far, of which push() has returned the beginning: what a stop string may still take
  // back is counted too.
  uint64_t num_decoded_bytes() const { return num_decoded_bytes_; }

  bool has_stopped() const { return matcher_.has_matched(); }
  const std::string& stop() const { return matcher_.matched(); }  // the stop string, or empty

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::string rest_;
  uint64_t num_decoded_bytes_ = 0;
};

}  // namespace tandem::text
