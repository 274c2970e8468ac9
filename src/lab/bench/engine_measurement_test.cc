#include "lab/bench/engine_measurement.h"

#include <doctest/doctest.h>

#include <set>

namespace tandem::bench {
namespace {

// Takes a fixed time for a step and for each of its tokens, and checks that what it is asked to do makes sense.
class FakeExecutor final : public sched::StepExecutor {
 public:
  explicit FakeExecutor(ManualClock& clock) : clock_(clock) {}

  Result<sched::StepOutcome> execute(const sched::Batch& batch) override {
    ++num_steps;
    sched::StepOutcome outcome;
    std::set<uint32_t> blocks;
    uint32_t num_tokens = 0;
    for (const sched::BatchItem& item : batch.items) {
      CHECK(item.begin + item.count <= item.tokens.size());
      CHECK(item.blocks.size() * 16 >= item.begin + item.count);
      CHECK((!item.samples || item.begin + item.count == item.tokens.size()));
      for (const TokenId token : item.tokens) CHECK((token >= 0 && token < 100));
      for (const kv::BlockId block : item.blocks) {
        CHECK(blocks.insert(kv::index(block)).second);
        CHECK(kv::index(block) < 64);
      }
      num_tokens += item.count;
      largest_chunk = std::max(largest_chunk, item.count);
      deepest = std::max(deepest, item.begin + item.count);
      sched::ItemOutcome item_outcome;
      item_outcome.token = 7;
      if (num_steps == fail_at) item_outcome.error = Error{ErrorCode::kInternal, "broken"};
      outcome.items.push_back(std::move(item_outcome));
    }
    CHECK(batch.num_tokens == num_tokens);
    clock_.advance_ms(1.0 + 0.5 * num_tokens);
    return outcome;
  }

  uint32_t num_steps = 0, largest_chunk = 0, deepest = 0, fail_at = 0;

 private:
  ManualClock& clock_;
};

BenchConfig config() {
  BenchConfig config;
  config.num_blocks = 64;
  config.vocab_size = 100;
  config.max_model_len = 512;
  config.chunk = 100;
  config.num_repetitions = 3;
  return config;
}

TEST_CASE("prefill: all tokens once, in chunks, behind the depth") {
  ManualClock clock;
  FakeExecutor executor(clock);
  EngineBench bench(executor, clock, config());
  const auto measured = bench.measure({Kind::kPrefill, 250, 1, 100});
  REQUIRE(bool(measured));
  // Three steps of 1 ms and 250 tokens of 0.5 ms.
  CHECK(measured.value().tokens_per_s == doctest::Approx(250 / 0.128));
  CHECK(measured.value().spread == doctest::Approx(0));
  CHECK(executor.num_steps == 1 + 4 * 3);
  CHECK(executor.largest_chunk == 100);
  CHECK(executor.deepest == 350);
}

TEST_CASE("decode: one row a sequence and step, over the whole batch") {
  ManualClock clock;
  FakeExecutor executor(clock);
  EngineBench bench(executor, clock, config());
  const auto measured = bench.measure({Kind::kDecode, 20, 8, 40});
  REQUIRE(bool(measured));
  CHECK(measured.value().tokens_per_s == doctest::Approx(8 / 0.005));
  CHECK(executor.num_steps == 8 + 4 + 3 * 20);
  CHECK(executor.deepest == 60);
  CHECK(bool(bench.measure({Kind::kDecode, 4, 1, 0})));
}

TEST_CASE("what does not fit is refused, and an item's error ends the measurement") {
  ManualClock clock;
  FakeExecutor executor(clock);
  EngineBench bench(executor, clock, config());
  const auto too_long = bench.measure({Kind::kPrefill, 513, 1, 0});
  REQUIRE_FALSE(bool(too_long));
  CHECK(too_long.error().message == "513 tokens behind 0 are more than the model's 512");
  const auto too_many = bench.measure({Kind::kDecode, 100, 32, 0});
  REQUIRE_FALSE(bool(too_many));
  CHECK(too_many.error().message.find("batch 32 with 100 tokens each needs 224 KV blocks, the pool has 64") == 0);
  CHECK(executor.num_steps == 0);
  executor.fail_at = 3;
  const auto broken = bench.measure({Kind::kDecode, 100, 1, 0});
  REQUIRE_FALSE(bool(broken));
  CHECK(broken.error().message == "broken");
}

TEST_CASE("points: every combination; a length of 0 asks for nothing") {
  CHECK(points_of({512, 4096}, {64}, {0, 512}, {1, 8, 32}).size() == 4 + 6);
  CHECK(points_of({0}, {64}, {0}, {1}).size() == 1);
  CHECK(points_of({512}, {0}, {0}, {1, 2}).size() == 1);
  CHECK(blocks_needed(points_of({512}, {64}, {4096}, {32}), 16) == 32 * 260);
  CHECK(blocks_needed({{Kind::kPrefill, 17, 1, 0}}, 16) == 2);
}

TEST_CASE("the limit is the one that allows less") {
  const ModelCost cost = {100e6, 1000, 200e6, 2000};
  const Peaks peaks = {50e9, 1e12, "int8"};
  // 100 MB a token at 50 GB/s: 500 tokens/s at most.
  LimitShare share = limit_share({{Kind::kDecode, 1, 1, 0}, 250, 0}, cost, peaks);
  CHECK(share.name == "memory");
  CHECK(share.fraction == doctest::Approx(0.5).epsilon(1e-3));
  // 200 MOP a token at 1 TOP/s: 5000 tokens/s at most.
  share = limit_share({{Kind::kPrefill, 512, 1, 0}, 2500, 0}, cost, peaks);
  CHECK(share.name == "int8");
  CHECK(share.fraction == doctest::Approx(0.5).epsilon(1e-2));
  CHECK(limit_share({{Kind::kPrefill, 512, 1, 0}, 2500, 0}, {}, peaks).name.empty());
}

}  // namespace
}  // namespace tandem::bench
