#include "serve/text/constraint.h"

#include <doctest/doctest.h>

#include <thread>

#include "serve/text/small_tokenizer_for_test.h"

namespace tandem::text {
namespace {

using Ids = std::vector<TokenId>;

constexpr size_t kLogits = 300;  // more than the vocabulary, as padded output layers have

ConstraintEngine small_engine() {
  // The engine keeps what it needs: the tokenizer goes first.
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  return must(ConstraintEngine::create(t, kLogits, {kEnd, kImEnd}));
}

struct Mask {
  std::vector<uint32_t> words;
  bool has(TokenId id) const { return (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; }
};

Mask mask_of(Constraint& constraint, const ConstraintEngine& engine) {
  Mask mask{std::vector<uint32_t>(engine.mask_words())};
  must(constraint.mask(mask.words.data(), mask.words.size()));
  return mask;
}

TEST_CASE("choice: masks, commit, rollback, clone, validate") {
  const ConstraintEngine engine = small_engine();
  CHECK(engine.mask_words() == 10);
  Constraint c = must(engine.compile(GrammarKind::kChoice, R"(["hello","yes"])"));
  const Mask start = mask_of(c, engine);
  CHECK(start.has('h'));
  CHECK(start.has('y'));
  CHECK(start.has(kHell));
  CHECK(!start.has('e'));
  CHECK(!start.has(kEnd));
  CHECK(!c.is_accepting());

  must(c.commit({kHell}));
  CHECK(!c.is_accepting());
  Constraint copy = must(c.clone());
  must(c.commit({'o'}));
  CHECK(c.is_accepting());
  const Mask end = mask_of(c, engine);
  CHECK(end.has(kEnd));
  CHECK(end.has(kImEnd));
  CHECK(!end.has('o'));

  must(c.rollback(1));
  CHECK(mask_of(c, engine).has('o'));
  CHECK(!mask_of(c, engine).has(kEnd));
  CHECK(mask_of(copy, engine).has('o'));
  CHECK(must(copy.validate({'o', 'x'})) == 1);
  Mask too_short{std::vector<uint32_t>(3)};
  CHECK(!copy.mask(too_short.words.data(), too_short.words.size()));
}

TEST_CASE("after the stop token it is over") {
  const ConstraintEngine engine = small_engine();
  Constraint c = must(engine.compile(GrammarKind::kRegex, "ab"));
  CHECK(!c.is_stopped());
  must(c.commit({'a', 'b', kEnd}));
  CHECK(c.is_stopped());
}

TEST_CASE("forced tokens are those without a choice") {
  const ConstraintEngine engine = small_engine();
  Constraint c = must(engine.compile(GrammarKind::kChoice, R"(["xyz"])"));
  const Ids forced = must(c.forced());
  CHECK(forced.size() <= 3);
  CHECK(must(c.validate(forced)) == forced.size());
}

TEST_CASE("every kind compiles and masks") {
  const ConstraintEngine engine = small_engine();
  const std::pair<GrammarKind, const char*> grammars[] = {
      {GrammarKind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})"},
      {GrammarKind::kRegex, "[0-9]{2,4}"},
      {GrammarKind::kLark, "start: \"a\" /[bc]+/"}};
  for (const auto& [kind, source] : grammars) {
    CAPTURE(source);
    Constraint c = must(engine.compile(kind, source));
    mask_of(c, engine);
  }
  Constraint json = must(engine.compile(grammars[0].first, grammars[0].second));
  CHECK(mask_of(json, engine).has('{'));
  CHECK(!mask_of(json, engine).has('['));
  CHECK(must(json.validate({'{', '"', 'a', '"', ':', '1', '}'})) == 7);
  CHECK(must(json.validate({'{', '"', 'b'})) == 2);
}

TEST_CASE("a grammar that is wrong or over a bound is refused with a reason") {
  const ConstraintEngine engine = small_engine();
  const std::pair<GrammarKind, std::string> grammars[] = {
      {GrammarKind::kJsonSchema, R"({"type": "nonsense"})"},
      {GrammarKind::kJsonSchema, "not json"},
      {GrammarKind::kRegex, "("},
      {GrammarKind::kLark, "start: nothing"},
      {GrammarKind::kChoice, "[]"},
      {GrammarKind::kChoice, R"([""])"},
      {GrammarKind::kLark, "start: " + std::string(100000, '(')},
      {GrammarKind::kRegex, std::string(300 * 1024, 'x')},
      {GrammarKind::kJsonSchema, R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})"}};
  for (const auto& [kind, source] : grammars) {
    CAPTURE(source.substr(0, 60));
    Result<Constraint> c = engine.compile(kind, source);
    REQUIRE(!c);
    CHECK(!c.error().message.empty());
    CHECK(c.error().message.size() < 500);
  }
}

TEST_CASE("an ambiguous grammar ends by itself, at compile time or with an error later") {
  const ConstraintEngine engine = small_engine();
  Result<Constraint> c = engine.compile(GrammarKind::kLark, "start: s\ns: s s | \"a\"");
  bool failed = !c;
  for (int i = 0; !failed && i < 2000; ++i) failed = !c->commit({'a'});
  CHECK(failed);
}

TEST_CASE("an engine without a usable stop token is refused") {
  const Tokenizer t = must(Tokenizer::from_parts(byte_level_parts()));
  CHECK(!ConstraintEngine::create(t, kLogits, {}));
  CHECK(!ConstraintEngine::create(t, kLogits, {5000}));
}

TEST_CASE("threads use their own constraints of one engine at once") {
  const ConstraintEngine engine = small_engine();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) {
        Constraint c = must(engine.compile(GrammarKind::kChoice, R"(["hello","yes"])"));
        must(c.commit({'h', 'e'}));
        wrong[i] += !mask_of(c, engine).has(kLl) || mask_of(c, engine).has('h');
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

// The fault: a model that likes blanks wrote them until its limit was reached, and the answer was no JSON.
TEST_CASE("a JSON value has blanks between its parts, but not without end") {
  const ConstraintEngine engine = small_engine();
  for (const char* schema : {R"({"type":"object"})", "true", R"({"type":"object","x-guidance":{"lenient":true}})"}) {
    Constraint c = must(engine.compile(GrammarKind::kJsonSchema, schema));
    must(c.commit({'{'}));
    size_t num_blanks = 0;
    while (num_blanks < 1000 && must(c.validate({' '})) == 1) {
      must(c.commit({' '}));
      ++num_blanks;
    }
    CHECK(num_blanks == 24);
    CHECK(must(c.validate({'}'})) == 1);
  }
  CHECK(!engine.compile(GrammarKind::kJsonSchema,
                        R"({"type":"array","uniqueItems":true,"x-guidance":{"lenient":true}})"));
}

}  // namespace
}  // namespace tandem::text
