#pragma once
// StreamDecoder: one sequence's tokens to text as they come, in whole UTF-8 characters, each exactly once.
// The pieces joined are the text of Tokenizer::decode over the same ids. Bytes that can not become a
// character come as U+FFFD. One thread at a time; keeps what it needs of the tokenizer.

#include <memory>
#include <string_view>
#include <vector>

#include "base/sampling_params.h"
#include "serve/text/tokenizer.h"

extern "C" {
struct tt_stream;
}

namespace tandem::text {

class StreamDecoder {
 public:
  // skip_special: control tokens that the file marks special give no text.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);

  StreamDecoder(StreamDecoder&&) noexcept = default;
  StreamDecoder& operator=(StreamDecoder&&) noexcept = default;

  // Before the first push: takes `prompt` as shown already. What follows continues it (a leading space
  // stays), and a character that the prompt leaves unfinished comes whole in the first piece.
  void seed(const std::vector<TokenId>& prompt);

  // The characters that this token completes, perhaps none. Valid until the next call.
  std::string_view push(TokenId id);
  // At the end: an unfinished character, as U+FFFD. Valid until the next call.
  std::string_view finish();

 private:
  struct Free {
    void operator()(tt_stream* handle) const;
  };

  std::unique_ptr<tt_stream, Free> handle_;
};

}  // namespace tandem::text
