// Requests with a grammar through the engine: steps that fail and are run again or taken apart, faults of a grammar.

#include <doctest/doctest.h>

#include "serve/engine/engine.h"
#include "serve/engine/recording_sink.h"
#include "serve/sched/mask_for_test.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::engine {
namespace {

using sched::CountedMask;
using sched::CountedMaskRule;
using sched::Request;

struct Bench {
  Bench() : executor({64, 16, 1000, 3}), engine(config(), executor, clock, metrics) {
    executor.set_observer([this](uint64_t, const sched::Batch&) { clock.advance_ms(5); });
  }
  static EngineConfig config() {
    EngineConfig config;
    config.vocab_size = 1000;
    config.sched.num_blocks = 64;
    config.sched.max_num_seqs = 8;
    config.sched.max_num_batched_tokens = 64;
    config.sched.max_model_len = 256;
    config.sched.eos_ids = {2};
    return config;
  }
  std::shared_ptr<RecordingSink> submit(Request request) {
    auto sink = std::make_shared<RecordingSink>();
    REQUIRE(static_cast<bool>(engine.submit(std::move(request), sink)));
    return sink;
  }
  void run() {
    for (int turn = 0; engine.run_once(); ++turn) REQUIRE(turn < 10000);
  }

  ManualClock clock;
  MetricRegistry metrics;
  sched::ScriptedExecutor executor;
  Engine engine;
};

Request request_of(TokenId first, uint32_t max_tokens) {
  Request request;
  for (TokenId i = 0; i < 12; ++i) request.prompt.push_back(3 + (first * 131 + i * 17) % 900);
  request.max_tokens = max_tokens;
  return request;
}

Request masked(TokenId first, CountedMaskRule rule = {}) {
  Request request = request_of(first, 12);
  add_mask(request, rule);
  return request;
}

std::vector<TokenId> alone(Request request) {
  Bench bench;
  const auto sink = bench.submit(std::move(request));
  bench.run();
  return sink->tokens();
}

TEST_CASE("steps that fail once, or are taken apart for another's sake, leave masked answers as they are") {
  Bench bench;
  bench.executor.fail_step(3, {ErrorCode::kUnavailable, "once"});
  bench.executor.fail_steps_with(4);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (TokenId first = 0; first < 4; ++first) sinks.push_back(bench.submit(masked(first)));
  Request poisoned = request_of(9, 5);
  poisoned.prompt[3] = 4;
  const auto bad = bench.submit(std::move(poisoned));
  bench.run();
  CHECK(bad->error());
  for (TokenId first = 0; first < 4; ++first) {
    CHECK(sinks[static_cast<size_t>(first)]->tokens() == alone(masked(first)));
    CHECK(CountedMask::accepts(sinks[static_cast<size_t>(first)]->tokens()));
    CHECK(!sinks[static_cast<size_t>(first)]->error());
  }
}

TEST_CASE("a grammar that fails in the middle ends its request with its words, and is counted") {
  Bench bench;
  const auto bad_mask = bench.submit(masked(1, {.mask_fails_at = 3}));
  const auto bad_commit = bench.submit(masked(2, {.commit_fails_at = 5}));
  const auto good = bench.submit(request_of(3, 12));
  bench.run();
  CHECK(bad_mask->error()->message == "the mask fails");
  CHECK(bad_mask->tokens().size() == 3);
  CHECK(bad_commit->error()->message == "the commit fails");
  CHECK(bad_commit->tokens().size() == 5);
  CHECK(good->tokens() == alone(request_of(3, 12)));
  CHECK(bench.metrics.exposition().find("tandem_request_failures_total 2\n") != std::string::npos);
}

// The fault: the request was taken and answered without its grammar.
TEST_CASE("API-21 over the engine: a grammar that nothing would enforce is refused") {
  Bench bench;
  Request request = request_of(1, 5);
  request.grammar = sched::Grammar{sched::GrammarKind::kRegex, "a+"};
  const auto refused = bench.engine.submit(std::move(request), std::make_shared<RecordingSink>());
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::engine
