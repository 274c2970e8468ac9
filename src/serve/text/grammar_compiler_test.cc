#include "serve/text/grammar_compiler.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "serve/text/small_tokenizer_for_test.h"

namespace tandem::text {
namespace {

using sched::Grammar;
using sched::GrammarKind;
using sched::is_allowed;

// Each look at it is `step_ns` after the one before.
class TickingClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_ += step_ns; }
  int64_t step_ns = 0;

 private:
  mutable int64_t now_ns_ = 0;
};

struct Bench {
  explicit Bench(GrammarConfig config = {}) : grammars(tokenizer, with_model(std::move(config)), metrics) {}

  static GrammarConfig with_model(GrammarConfig config) {
    config.logits_size = 300;
    config.stops = {kEnd, kImEnd};
    return config;
  }
  bool has_metric(const std::string& line) const { return metrics.exposition().find(line + "\n") != std::string::npos; }

  Tokenizer tokenizer = must(Tokenizer::from_parts(byte_level_parts()));
  MetricRegistry metrics;
  GrammarCompiler grammars;
};

const Grammar kYesOrHello{GrammarKind::kChoice, R"(["yes","hello"])"};

std::vector<TokenId> allowed_of(sched::TokenMask& mask) {
  std::vector<TokenId> tokens;
  const auto words = must(mask.allowed());
  for (TokenId id = 0; id < 300; ++id) {
    if (is_allowed(words, id)) tokens.push_back(id);
  }
  return tokens;
}

TEST_CASE("a mask follows its own tokens and says when it is over; each choice has its own") {
  Bench bench;
  const TokenMaskMaker make = bench.grammars.masks_of(kYesOrHello);
  const auto first = make(), second = make();
  CHECK(allowed_of(*first) == std::vector<TokenId>{'h', 'y', 256, kHell});
  CHECK(allowed_of(*first) == std::vector<TokenId>{'h', 'y', 256, kHell});  // asked again, as for a step run again
  must(first->commit(kHell));
  CHECK(allowed_of(*first) == std::vector<TokenId>{'o'});
  must(second->commit('y'));
  CHECK(allowed_of(*second) == std::vector<TokenId>{'e'});
  CHECK(!first->is_over());
  must(first->commit('o'));
  CHECK(first->is_over());
  CHECK(!second->is_over());
  CHECK(allowed_of(*first) == std::vector<TokenId>{kImEnd, kEnd});
}

TEST_CASE("tokens that came elsewhere are taken in before the first mask, and the mask is the same") {
  Bench bench;
  const Grammar schema{GrammarKind::kJsonSchema,
                       R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})"};
  const std::vector<TokenId> said = {'{', '"', 'a', '"', ':', '1'};
  const auto whole = bench.grammars.masks_of(schema)();
  for (const TokenId token : said) {
    CHECK(is_allowed(must(whole->allowed()), token));
    must(whole->commit(token));
  }
  const auto later = bench.grammars.masks_of(schema)();
  for (const TokenId token : said) must(later->commit(token));
  CHECK(!later->is_over());
  CHECK(allowed_of(*later) == allowed_of(*whole));
}

TEST_CASE("what is wrong with a grammar is said by check, and by a mask of it at its first use") {
  Bench bench;
  const Grammar wrong{GrammarKind::kRegex, "("};
  const Status status = bench.grammars.check(wrong);
  REQUIRE(!status);
  CHECK(status.error().code == ErrorCode::kInvalidArgument);
  const auto mask = bench.grammars.masks_of(wrong)();
  must(mask->commit('a'));
  CHECK(mask->allowed().error().message == status.error().message);
  CHECK(!mask->commit('a'));
  CHECK(bench.has_metric(R"(tandem_grammar_failures_total{stage="compile"} 1)"));
}

TEST_CASE("a token that the grammar does not let through ends the mask, and nothing else") {
  Bench bench;
  const auto bad = bench.grammars.masks_of(kYesOrHello)(), good = bench.grammars.masks_of(kYesOrHello)();
  must(bad->allowed());
  CHECK(!bad->commit('x'));
  CHECK(!bad->allowed());
  CHECK(!bad->is_over());
  CHECK(allowed_of(*good).size() == 4);
  CHECK(bench.has_metric(R"(tandem_grammar_failures_total{stage="commit"} 1)"));
}

TEST_CASE("a grammar that comes again is not compiled again, as long as it is kept") {
  GrammarConfig config;
  config.max_kept = 3;
  Bench bench(config);
  const auto number = [](int i) { return Grammar{GrammarKind::kRegex, "a{" + std::to_string(i) + "}"}; };
  for (int round = 0; round < 5; ++round) must(bench.grammars.check(number(1)));
  CHECK(bench.has_metric("tandem_grammar_compile_seconds_count 1"));
  CHECK(bench.grammars.is_known(number(1)));
  CHECK(!bench.grammars.is_known({GrammarKind::kLark, number(1).source}));
  const auto held = bench.grammars.masks_of(number(1));
  const auto kept = must(bench.grammars.compile(number(1)));
  for (int i = 2; i <= 4; ++i) must(bench.grammars.check(number(i)));
  CHECK(!bench.grammars.is_known(number(1)));
  CHECK(bench.grammars.is_known(number(2)));
  CHECK(allowed_of(*held()) == std::vector<TokenId>{'a'});  // whoever has it keeps it
  CHECK(allowed_of(*kept()()) == std::vector<TokenId>{'a'});
  CHECK(bench.has_metric("tandem_grammar_compile_seconds_count 4"));

  config.max_kept = 100;
  config.max_kept_bytes = 1000;
  Bench small(config);
  for (int i = 0; i < 50; ++i)
    must(small.grammars.check({GrammarKind::kRegex, std::string(400, 'x') + char('a' + i % 26)}));
  CHECK(!small.grammars.is_known({GrammarKind::kRegex, std::string(400, 'x') + 'a'}));
  CHECK(!small.grammars.check({GrammarKind::kRegex, std::string(300 * 1024, 'x')}));
}

TEST_CASE("slow tokens are added up over a request's choices, and end it over its budget") {
  TickingClock clock;
  GrammarConfig config;
  config.work_clock = &clock;
  config.slow_s = 0.005;
  config.budget_s = 0.05;
  Bench bench(config);
  const Grammar many{GrammarKind::kRegex, "a*"};
  const auto tokens_until_error = [&](std::vector<std::unique_ptr<sched::TokenMask>> masks) {
    for (int token = 0; token < 1000; ++token) {
      sched::TokenMask& mask = *masks[static_cast<size_t>(token) % masks.size()];
      if (const auto allowed = mask.allowed(); !allowed) {
        CHECK(allowed.error().code == ErrorCode::kInvalidArgument);
        CHECK(allowed.error().message.find("takes too long") != std::string::npos);
        return token;
      }
      if (!mask.commit('a')) return token;
    }
    return 1000;
  };
  const auto masks = [&](size_t count) {
    std::vector<std::unique_ptr<sched::TokenMask>> made;
    const TokenMaskMaker make = bench.grammars.masks_of(many);
    for (size_t i = 0; i < count; ++i) made.push_back(make());
    return made;
  };
  clock.step_ns = 4'000'000;
  CHECK(tokens_until_error(masks(1)) == 1000);  // never slow
  clock.step_ns = 10'000'000;
  const int one = tokens_until_error(masks(1));
  CHECK(one >= 1);
  CHECK(one <= 6);
  CHECK(tokens_until_error(masks(2)) <= one + 1);  // not each its own budget
  CHECK(bench.has_metric(R"(tandem_grammar_failures_total{stage="budget"} 2)"));
}

TEST_CASE("a model that ends no answer has no grammars, and says so") {
  const Tokenizer tokenizer = must(Tokenizer::from_parts(byte_level_parts()));
  MetricRegistry metrics;
  GrammarConfig config;
  config.logits_size = 300;
  GrammarCompiler grammars(tokenizer, config, metrics);
  const Status status = grammars.check(kYesOrHello);
  REQUIRE(!status);
  CHECK(status.error().code == ErrorCode::kInvalidArgument);
  CHECK(status.error().message.starts_with("this model cannot have grammars: "));
}

TEST_CASE("compiled ahead on a thread of its own, asked for by many at once, once") {
  Bench bench;
  const auto ahead = bench.grammars.masks_ahead(kYesOrHello)();
  for (int tries = 0; tries < 10000 && !ahead->is_ready(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(ahead->is_ready());
  CHECK(bench.grammars.masks_of({GrammarKind::kRegex, "new"})()->is_ready());  // its user compiles it
  std::vector<std::thread> threads;
  std::atomic<int> num_right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        const auto mask =
            n % 2 == 0 ? bench.grammars.masks_of(kYesOrHello)() : bench.grammars.masks_ahead(kYesOrHello)();
        const auto words = mask->allowed();
        num_right += words && is_allowed(words.value(), 'y') && !is_allowed(words.value(), 'e') && mask->commit('y') &&
                     is_allowed(mask->allowed().value(), 'e');
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_right == 200);
  CHECK(bench.has_metric("tandem_grammar_compile_seconds_count 1"));
}

TEST_CASE("API-21: parts of JSON schema that cannot be enforced are refused by name, never passed over") {
  Bench bench;
  const std::pair<const char*, const char*> schemas[] = {
      {R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","contains":{"type":"integer"}})", "contains"},
      {R"({"not":{"type":"string"}})", "not"},
      {R"({"if":{"type":"string"},"then":{"minLength":3}})", "if"},
      {R"({"type":"object","propertyNames":{"maxLength":3}})", "propertyNames"},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})", "dependentRequired"},
      {R"({"type":"object","dependencies":{"a":["b"]}})", "dependencies"},
      {R"({"type":"object","unevaluatedProperties":false})", "unevaluatedProperties"},
      {R"({"type":"string","format":"color"})", "color"},
      {R"({"type":"string","pattern":"("})", ""},
      {R"({"type":"string","pattern":"(?=a)b"})", ""},
      {R"({"$ref":"https://example.com/schema.json"})", ""},
      {R"({"type":"object","properties":{"deep":{"type":"array","items":{"not":{}}}}})", "not"}};
  for (const auto& [schema, name] : schemas) {
    CAPTURE(schema);
    const Status status = bench.grammars.check({GrammarKind::kJsonSchema, schema});
    REQUIRE(!status);
    CHECK(status.error().code == ErrorCode::kInvalidArgument);
    CHECK_MESSAGE(status.error().message.find(name) != std::string::npos, status.error().message);
  }
}

TEST_CASE("a choice's copy of the grammar is on its request's account, what came before the first mask is not") {
  // The faults: copies of a large grammar for a hundred choices cost the request nothing; a request that went on after
  // a node's death paid for its tokens twice.
  TickingClock clock;
  clock.step_ns = 10'000'000;
  GrammarConfig config;
  config.work_clock = &clock;
  config.slow_s = 0.005;
  const Grammar many{GrammarKind::kRegex, "a*"};
  SUBCASE("copies") {
    config.budget_s = 0.045;
    Bench bench(config);
    const TokenMaskMaker make = bench.grammars.masks_of(many);
    std::vector<std::unique_ptr<sched::TokenMask>> masks;
    while (masks.size() < 100) {
      masks.push_back(make());
      if (!masks.back()->allowed()) break;
    }
    CHECK(masks.size() == 3);  // 20 ms each
  }
  SUBCASE("tokens from before") {
    config.budget_s = 0.025;
    Bench bench(config);
    const auto mask = bench.grammars.masks_of(many)();
    for (int i = 0; i < 50; ++i) must(mask->commit('a'));
    must(mask->allowed());
    CHECK(!mask->commit('a'));  // from here on they are
  }
}

}  // namespace
}  // namespace tandem::text
