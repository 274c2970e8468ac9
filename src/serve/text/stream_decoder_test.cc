#include "serve/text/stream_decoder.h"

#include <doctest/doctest.h>

#include <random>

#include "base/utf8.h"
#include "serve/text/small_tokenizer_for_test.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;

std::vector<std::string> pieces_of(StreamDecoder& stream, const Ids& ids) {
  std::vector<std::string> pieces;
  for (TokenId id : ids) pieces.emplace_back(stream.push(id));
  pieces.emplace_back(stream.finish());
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  return all;
}

TEST_CASE("API-01: characters come whole, with the token that completes them") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  StreamDecoder stream(t, false);
  // 😀 as four tokens, then an ordinary one.
  CHECK(pieces_of(stream, {'a', 0xF0, 0x9F, 0x98, 0x80, 'b'}) ==
        std::vector<std::string>{"a", "", "", "", "😀", "b", ""});
}

TEST_CASE("API-02: bytes that can not become a character come as U+FFFD, and nothing after them is lost") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  const auto text = [&](const Ids& ids) {
    StreamDecoder stream(t, false);
    return joined(pieces_of(stream, ids));
  };
  CHECK(text({0xE2, '\''}) == "\uFFFD'");
  CHECK(text({0xC0, 0x80, 'x'}) == "\uFFFD\uFFFDx");
  CHECK(text({0xED, 0xA0, 0x80, 'x'}) == "\uFFFD\uFFFD\uFFFDx");
  CHECK(text({0xF5, 0x80, 0x80, 0x80}) == "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(text({'x', 0xF0, 0x9F}) == "x\uFFFD");  // unfinished at the end: one
  CHECK(text({999999, -1, 'x'}) == "x");        // no such token: no text
}

TEST_CASE("skip_special hides control tokens without breaking a character in two") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  StreamDecoder hides(t, true);
  CHECK(joined(pieces_of(hides, {kImStart, 0xC3, kImEnd, 0xA9, kToolCall})) == "é<tool_call>");
  StreamDecoder shows(t, false);
  CHECK(joined(pieces_of(shows, {kImStart, 'a', kImEnd})) == "<|im_start|>a<|im_end|>");
}

TEST_CASE("API-25: a prompt that ends inside a character: the first piece holds the character and no prompt text") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  Ids prompt = must(t.encode("Hello world "));
  prompt.insert(prompt.end(), {0xF0, 0x9F});
  StreamDecoder stream(t, true);
  stream.seed(prompt);
  CHECK(stream.push(0x98) == "");
  CHECK(stream.push(0x80) == "😀");
  CHECK(stream.push('!') == "!");
  CHECK(stream.finish() == "");
}

TEST_CASE("TOK-11: a space at the start of the reply stays when a prompt came before it") {
  const Tokenizer t = must(Tokenizer::from_parts(sentencepiece_parts("llama")));
  const TokenId ab = *t.token_id("▁ab");
  StreamDecoder alone(t, true);
  CHECK(joined(pieces_of(alone, {ab, ab})) == "ab ab");
  StreamDecoder after_prompt(t, true);
  after_prompt.seed(must(t.encode("ab")));
  CHECK(joined(pieces_of(after_prompt, {ab, ab})) == " ab ab");
  StreamDecoder after_bos(t, true);
  after_bos.seed({1});
  CHECK(joined(pieces_of(after_bos, {ab, ab})) == "ab ab");
  StreamDecoder after_one(t, true);
  after_one.seed({*t.token_id("a")});
  CHECK(joined(pieces_of(after_one, {ab})) == " ab");
}

// Fails when a piece is decoded without what came before it.
TEST_CASE("TOK-06, TOK-11: random tokens: pieces joined are the whole, each is UTF-8, wherever a prompt ends") {
  const Tokenizer bytes = must(Tokenizer::from_parts(byte_level_parts()));
  const Tokenizer pieces = must(Tokenizer::from_parts(sentencepiece_parts("llama")));
  std::mt19937 random(11);
  for (const Tokenizer* t : {&bytes, &pieces}) {
    const unsigned first_byte = t == &pieces ? 3 : 0;
    for (int round = 0; round < 3000; ++round) {
      Ids ids(random() % 24);
      // Mostly bytes of characters, so that cuts fall inside them.
      for (TokenId& id : ids)
        id = static_cast<TokenId>(random() % 3 ? first_byte + 0x80 + random() % 0x80 : random() % t->vocab_size());
      const bool skip = random() % 2;
      StreamDecoder stream(*t, skip);
      std::string all;
      for (TokenId id : ids) {
        const std::string piece(stream.push(id));
        CHECK(is_valid_utf8(piece));
        all += piece;
      }
      const std::string before_end = all;
      all += stream.finish();
      CHECK(is_valid_utf8(all));
      CHECK(all == t->decode(ids, skip));

      const size_t cut = ids.empty() ? 0 : random() % ids.size();
      StreamDecoder first(*t, skip);
      std::string shown;
      for (size_t i = 0; i < cut; ++i) shown += first.push(ids[i]);
      StreamDecoder second(*t, skip);
      second.seed(Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut)));
      for (size_t i = cut; i < ids.size(); ++i) shown += second.push(ids[i]);
      CHECK(shown == before_end);
    }
  }
}

TEST_CASE("a decoder outlives its tokenizer") {
  auto t = std::make_unique<Tokenizer>(must(Tokenizer::from_parts(byte_level_parts())));
  StreamDecoder stream(*t, true);
  t.reset();
  CHECK(stream.push(kHell) == "hell");
}

}  // namespace
}  // namespace tandem::text
