#include "serve/engine/engine.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "serve/engine/recording_sink.h"
#include "serve/sched/scripted_executor.h"

namespace tandem::engine {
namespace {

using sched::FinishReason;
using sched::Request;

EngineConfig small_config() {
  EngineConfig config;
  config.vocab_size = 1000;
  config.sched.num_blocks = 64;
  config.sched.max_num_seqs = 8;
  config.sched.max_num_batched_tokens = 64;
  config.sched.max_model_len = 256;
  config.sched.eos_ids = {2};
  return config;
}

Request make_request(std::vector<TokenId> prompt, uint32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

std::vector<TokenId> prompt_of(uint32_t length, TokenId first) {
  std::vector<TokenId> prompt(length);
  for (uint32_t i = 0; i < length; ++i) prompt[i] = 3 + (first * 131 + static_cast<TokenId>(i) * 17) % 900;
  return prompt;
}

// An engine without a thread, on a clock that a step advances by 5 ms.
struct Bench {
  explicit Bench(const EngineConfig& with = small_config())
      : config(with),
        executor({config.sched.num_blocks, config.sched.block_size, config.vocab_size, 3}),
        engine(config, executor, clock, metrics) {
    executor.set_observer([this](uint64_t, const sched::Batch& batch) {
      clock.advance_ms(5);
      largest_batch = std::max(largest_batch, batch.items.size());
    });
  }

  std::shared_ptr<RecordingSink> submit(Request request) {
    auto sink = std::make_shared<RecordingSink>();
    auto id = engine.submit(std::move(request), sink);
    REQUIRE(id);
    last_id = *id;
    return sink;
  }

  void run() {
    for (int turn = 0; turn < 100000; ++turn) {
      if (!engine.run_once()) return;
      engine.scheduler().check_invariants();
    }
    FAIL("the engine does not become idle");
  }

  EngineConfig config;
  ManualClock clock;
  MetricRegistry metrics;
  sched::ScriptedExecutor executor;
  Engine engine;
  sched::RequestId last_id{};
  size_t largest_batch = 0;
};

TEST_CASE("a scripted request gives its tokens and ends at the end token") {
  Bench bench;
  bench.executor.set_script({10, 11, 12}, {20, 21, 2});
  const auto sink = bench.submit(make_request({10, 11, 12}, 50));
  bench.run();
  REQUIRE(sink->is_done());
  CHECK(sink->tokens() == std::vector<TokenId>{20, 21, 2});
  REQUIRE(sink->finish());
  CHECK(sink->finish()->reason == FinishReason::kStop);
  CHECK(sink->finish()->stop_token == 2);
}

TEST_CASE("many requests run in one batch and each ends as it does alone") {
  Bench together;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 20; ++i) sinks.push_back(together.submit(make_request(prompt_of(5 + i * 3, i), 10)));
  together.run();
  CHECK(together.largest_batch > 4);
  for (int i = 0; i < 20; ++i) {
    Bench alone;
    const auto sink = alone.submit(make_request(prompt_of(5 + i * 3, i), 10));
    alone.run();
    CHECK(sinks[i]->tokens() == sink->tokens());
    CHECK(sinks[i]->finish()->reason == FinishReason::kLength);
  }
}

}  // namespace
}  // namespace tandem::engine
