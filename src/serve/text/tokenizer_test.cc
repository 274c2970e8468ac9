#include "serve/text/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "serve/text/small_tokenizer_for_test.h"
#include "serve/text/tandem_text.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;

constexpr EncodeOptions kTyped{};
constexpr EncodeOptions kParsed{.add_special = false, .parse_control = true};
constexpr EncodeOptions kWhole{.add_special = true, .parse_control = false};

TEST_CASE("byte-level BPE from parts: merges, BOS, control tokens") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  CHECK(t.vocab_size() == 263);
  CHECK(must(t.encode("hello", kTyped)) == Ids{kHell, 'o'});
  CHECK(must(t.encode("hello", kWhole)) == Ids{kImStart, kHell, 'o'});
  CHECK(must(t.encode("a<|im_end|>", kParsed)) == Ids{'a', kImEnd});
  CHECK(t.bos() == kImStart);
  CHECK(t.eos() == kEnd);
  CHECK(t.token_id("<|im_end|>") == kImEnd);
  CHECK(!t.token_id("nothing"));
  CHECK(t.token_bytes(kHell) == "hell");
  CHECK(t.token_bytes(0xE6) == "\xE6");
  CHECK(t.token_bytes(999999) == "");
  CHECK(t.token_bytes(-1) == "");
  CHECK(t.is_control(kImEnd));
  CHECK(t.is_control(kToolCall));  // shaped like markup, though the file calls it an ordinary added token
  CHECK(!t.is_control('a'));
  CHECK(!t.is_control(-1));
}

TEST_CASE("TOK-01: typed text never becomes a control token, and comes back unchanged") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  for (const char* text : {"<|im_end|>", "x<|im_start|>y", "<tool_call>", "<|im_<|im_end|>end|>"}) {
    CAPTURE(text);
    const Ids ids = must(t.encode(text, kTyped));
    CHECK(!has_control(t, ids));
    CHECK(t.decode(ids, true) == text);
  }
}

TEST_CASE("TOK-02: a text that begins with BOS gets no second one") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  const EncodeOptions both{.add_special = true, .parse_control = true};
  CHECK(must(t.encode("<|im_start|>a", both)) == Ids{kImStart, 'a'});
  CHECK(must(t.encode("a<|im_start|>", both)) == Ids{kImStart, 'a', kImStart});
  CHECK(must(t.encode("", both)) == Ids{kImStart});
  // Typed, it is text, so the model's own BOS is still missing.
  CHECK(must(t.encode("<|im_start|>", kWhole)).front() == kImStart);
  CHECK(must(t.encode("<|im_start|>", kWhole)).size() > 2);
}

TEST_CASE("TOK-02: a file that leaves add_bos out gets what its kind expects") {
  TokenizerParts parts = sentencepiece_parts("llama");
  parts.add_bos.reset();
  parts.add_eos.reset();
  CHECK(must(must(Tokenizer::from_parts(parts)).encode("a", kWhole)).front() == 1);
  CHECK(must(must(Tokenizer::from_parts(parts)).encode("a", kWhole)).back() != 2);
  parts.kind = "t5";
  CHECK(must(must(Tokenizer::from_parts(parts)).encode("a", kWhole)).front() != 1);
  CHECK(must(must(Tokenizer::from_parts(parts)).encode("a", kWhole)).back() == 2);
  TokenizerParts bytes = byte_level_parts();
  bytes.add_bos.reset();
  CHECK(must(must(Tokenizer::from_parts(bytes)).encode("a", kWhole)) == Ids{'a'});
  bytes.pre = "llama-bpe";
  CHECK(must(must(Tokenizer::from_parts(bytes)).encode("a", kWhole)) == Ids{kImStart, 'a'});
}

TEST_CASE("text of every script comes back as it was") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  for (const char* text : {"", " ", "  a  b \n\n c\t", "é", "日本語", "👩‍👩‍👧", "e\u0301", "\u200b", "깰",
                           "ążź", "မြန်မာ", "ภาษาไทย"}) {
    CAPTURE(text);
    CHECK(t.decode(must(t.encode(text, kTyped)), false) == text);
  }
}

TEST_CASE("TOK-08: invalid UTF-8 is read as U+FFFD, one for each piece that can not go on") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  CHECK(t.decode(must(t.encode("a\xff\xfe")), false) == "a\uFFFD\uFFFD");
  CHECK(t.decode(must(t.encode("\xE6\xAD")), false) == "\uFFFD");
  CHECK(t.decode(must(t.encode("\xED\xA0\x80x")), false) == "\uFFFD\uFFFD\uFFFDx");  // a surrogate
  CHECK(t.decode({0xE6, 'x'}, false) == "\uFFFDx");  // a cut character is replaced, once
  CHECK(t.decode({0xE2, '\''}, false) == "\uFFFD'");
  CHECK(t.decode({0xC0, 0x80}, false) == "\uFFFD\uFFFD");
  CHECK(t.decode({'a', 0xF0}, false) == "a\uFFFD");
}

TEST_CASE("TOK-03, TOK-05: SentencePiece kinds: space prefix, byte fallback, control pieces") {
  for (const char* kind : {"llama", "t5"}) {
    CAPTURE(kind);
    const Tokenizer t = must(Tokenizer::from_parts(sentencepiece_parts(kind)));
    const TokenId ab = *t.token_id("▁ab");
    CHECK(must(t.encode("ab ab", kWhole)) == Ids{ab, ab, 2});
    for (const char* text : {"ab a", "a</s>b", "é", "日", "<0x41>", "깰"}) {
      CAPTURE(text);
      const Ids ids = must(t.encode(text, kTyped));
      CHECK(!has_control(t, ids));
      CHECK(t.decode(ids, false) == text);  // the space prefix is gone again
    }
    const Ids parsed = must(t.encode("a</s>", kParsed));
    REQUIRE(!parsed.empty());
    CHECK(parsed.back() == 2);
  }
}

TEST_CASE("what a vocabulary without bytes lacks becomes one unknown token, and changes nothing around it") {
  TokenizerParts parts;
  parts.kind = "t5";
  parts.tokens = {"<unk>", "</s>", "▁ab", "ab", "a", "b", "▁"};
  parts.types = {2, 3, 1, 1, 1, 1, 1};
  parts.scores = {0, 0, -1, -1.5, -3, -3, -4};
  parts.unk = 0;
  parts.eos = 1;
  parts.add_eos = false;
  const Tokenizer t = must(Tokenizer::from_parts(parts));
  CHECK(must(t.encode("ab日本ab", kTyped)) == Ids{2, 0, 3});
  CHECK(must(t.encode("ab<unk>ab", kTyped)) == Ids{2, 0, 3});  // typed: unknown characters, not the token's name
  CHECK(must(t.encode("ab</s>", kTyped)) == Ids{2, 0});
  CHECK(must(t.encode("ab</s>", kParsed)) == Ids{2, 1});
}

TEST_CASE("TOK-01: a model that knows a control token by name does not make it of typed text") {
  const Tokenizer t = must(Tokenizer::from_json(R"({
    "added_tokens": [{"id": 5, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "ignore_merges": true, "merges": [],
              "vocab": {"a": 0, "<": 1, "/": 2, "s": 3, ">": 4, "</s>": 5}}})"));
  CHECK(must(t.encode("</s>", kTyped)) == Ids{1, 2, 3, 4});
  CHECK(must(t.encode("</s>", kParsed)) == Ids{5});
}

TEST_CASE("TOK-04: what a file gets wrong is an error that says so") {
  const auto message = [](const TokenizerParts& parts) {
    Result<Tokenizer> t = Tokenizer::from_parts(parts);
    return t ? std::string() : t.error().message;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(!Tokenizer::from_json("{\"model\": 3}"));
  CHECK(!Tokenizer::from_json(""));
  CHECK(!Tokenizer::from_json(std::string(100000, '[')));
  TokenizerParts parts;
  parts.kind = "gpt2";
  parts.pre = "gpt-2";
  CHECK(has(message(parts), "empty"));
  parts = byte_level_parts();
  parts.pre = "no-such";
  CHECK(has(message(parts), "no-such"));
  parts = byte_level_parts();
  parts.kind = "bert";
  CHECK(has(message(parts), "bert"));
  parts = byte_level_parts();
  parts.types.pop_back();
  CHECK(has(message(parts), "types"));
  parts = byte_level_parts();
  parts.merges.push_back("nospace");
  CHECK(has(message(parts), "nospace"));
  parts = byte_level_parts();
  parts.merges.push_back("he o");  // merges to a token that is not there
  CHECK(!message(parts).empty());
  parts = sentencepiece_parts("llama");
  parts.scores.clear();
  CHECK(has(message(parts), "score"));
  parts = sentencepiece_parts("llama");
  parts.scores.pop_back();
  CHECK(has(message(parts), "score"));
  parts = sentencepiece_parts("t5");
  parts.charsmap = "garbage";
  CHECK(!message(parts).empty());
  parts = byte_level_parts();
  parts.bos = 1 << 30;  // outside: as if the file named none
  CHECK(!must(Tokenizer::from_parts(parts)).bos());
}

TEST_CASE("TOK-08: random bytes as text: never a crash, never a control token, whole as UTF-8") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  std::mt19937 random(7);
  const char* spice[] = {"<|im_end|>", "<tool_call>", "hell", "日", "\xE6\xAD", " "};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int n = static_cast<int>(random() % 12); n > 0; --n) {
      if (random() % 2) text += spice[random() % std::size(spice)];
      else text += static_cast<char>(random() % 256);
    }
    const Ids ids = must(t.encode(text));
    CHECK(!has_control(t, ids));
    const std::string once = t.decode(ids, true);
    CHECK(t.decode(must(t.encode(once)), true) == once);
  }
}

TEST_CASE("one tokenizer serves many threads") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  const Ids want = must(t.encode("hello hell 日本 <|im_end|>", kParsed));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 500; ++n) wrong[i] += must(t.encode("hello hell 日本 <|im_end|>", kParsed)) != want;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("a panic inside the library is an error outside, on any thread") {
  const auto panics = [] {
    tt_text error{};
    const bool ok = tt_test_panic(&error);
    const std::string message(error.data, error.size);
    tt_text_free(&error);
    return !ok && message.rfind("internal error: deliberate (src/ffi/mod.rs:", 0) == 0;
  };
  CHECK(panics());
  bool on_thread = false;
  std::thread([&] { on_thread = panics(); }).join();
  CHECK(on_thread);
}

}  // namespace
}  // namespace tandem::text
