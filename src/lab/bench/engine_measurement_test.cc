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

TEST_CASE("reads are taken around each repetition, and one between unequal reads is repeated a few times") {
  ManualClock clock;
  FakeExecutor executor(clock);
  BenchConfig with_reads = config();
  std::vector<double> reads = {100, 102, 100, 120, 110, 111, 50, 60, 70, 80, 80, 90};
  size_t next = 0;
  with_reads.read_meter = [&] { return reads.at(next++); };
  EngineBench bench(executor, clock, with_reads);
  auto measured = bench.measure({Kind::kPrefill, 100, 1, 0});
  REQUIRE(bool(measured));
  CHECK(next == reads.size());
  REQUIRE(measured->repetitions.size() == 3);
  CHECK(measured->repetitions[0].read_bytes_per_s == doctest::Approx(101));
  CHECK(measured->repetitions[0].is_steady);
  CHECK(measured->repetitions[1].read_bytes_per_s == doctest::Approx(110.5));
  CHECK(measured->repetitions[1].is_steady);
  // No try was steady: the steadiest stays, and is marked.
  CHECK(measured->repetitions[2].read_bytes_per_s == doctest::Approx(85));
  CHECK_FALSE(measured->repetitions[2].is_steady);
  CHECK(executor.num_steps == 1 + 1 + 2 + 3);
}

}  // namespace
}  // namespace tandem::bench
