// libFuzzer: any bytes as a text that somebody typed, and as tokens that a model said. The first byte chooses the
// vocabulary and how the rest is read.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "serve/text/small_tokenizer_for_test.h"
#include "serve/text/stream_decoder.h"

namespace tandem::text {
namespace {

void encode_any(const Tokenizer& tokenizer, std::string_view text, bool adds_special) {
  const std::vector<TokenId> typed = must(tokenizer.encode(text));
  TANDEM_CHECK(!has_control(tokenizer, typed));
  std::string valid;
  append_valid_utf8(valid, text);
  const std::string back = tokenizer.decode(typed, false);
  TANDEM_CHECK(is_valid_utf8(back));
  // A vocabulary of bytes gives back what is left when the invalid is replaced.
  if (tokenizer.vocab_size() == 263) TANDEM_CHECK(back == valid);
  const std::vector<TokenId> parsed =
      must(tokenizer.encode(text, {.add_special = adds_special, .parse_control = true}));
  TANDEM_CHECK(is_valid_utf8(tokenizer.decode(parsed, true)));
  for (const TokenId id : parsed) TANDEM_CHECK(id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size());
}

// Two bytes a token, so that any id comes, also ones that there are not.
void decode_any(const Tokenizer& tokenizer, std::string_view bytes, bool skips) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back((static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8) % 300 - 10);
  }
  StreamDecoder stream(tokenizer, skips);
  std::string all;
  for (const TokenId id : ids) {
    const std::string_view piece = stream.push(id);
    TANDEM_CHECK(is_valid_utf8(piece));
    all += piece;
  }
  all += stream.finish();
  TANDEM_CHECK(all == tokenizer.decode(ids, skips));
}

}  // namespace
}  // namespace tandem::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::text;
  static const Tokenizer kinds[] = {must(Tokenizer::from_parts(byte_level_parts())),
                                    must(Tokenizer::from_parts(sentencepiece_parts("llama"))),
                                    must(Tokenizer::from_parts(sentencepiece_parts("t5")))};
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Tokenizer& tokenizer = kinds[data[0] % 3];
  if (data[0] & 0x80)
    decode_any(tokenizer, rest, data[0] & 0x40);
  else
    encode_any(tokenizer, rest, data[0] & 0x40);
  return 0;
}
