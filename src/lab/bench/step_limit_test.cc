#include "lab/bench/step_limit.h"

#include <doctest/doctest.h>

#include "lab/bench/engine_measurement.h"

namespace tandem::bench {
namespace {

constexpr Peaks kPeaks = {50e9, 1e12, 0.5e12, 0.25e12};

OpCost linear(double weight_bytes, double ops_per_row, bool is_head = false) {
  return {Arithmetic::kInt8, is_head, weight_bytes, ops_per_row, 0, 0};
}

TEST_CASE("each op is bound by reads or by arithmetic, and their times add up") {
  // 100 MB at 50 GB/s take 2 ms, 200 MOP a row at 1 TOP/s 0.2 ms: at 10 rows both take 2 ms.
  const std::vector<OpCost> ops = {linear(100e6, 200e6)};
  LimitTime limit = limit_time(ops, {{1, 1, 0, 0}}, kPeaks);
  CHECK(limit.seconds == doctest::Approx(2e-3));
  CHECK(limit.name == "memory");
  limit = limit_time(ops, {{100, 100, 0, 0}}, kPeaks);
  CHECK(limit.seconds == doctest::Approx(20e-3));
  CHECK(limit.name == "int8");
  // Beside it attention: 1000 keys of 1 kB are 20 us, of 2 MOP for a row 4 ms of bf16.
  const OpCost attention = {Arithmetic::kBf16, false, 0, 0, 1e3, 2e6};
  limit = limit_time({linear(100e6, 200e6), attention}, {{1, 1, 1000, 1000}}, kPeaks);
  CHECK(limit.seconds == doctest::Approx(6e-3));
  CHECK(limit.name == "bf16");
  limit = limit_time(ops, {{1, 1, 0, 0}, {1, 1, 0, 0}}, kPeaks);
  CHECK(limit.seconds == doctest::Approx(4e-3));
}

TEST_CASE("the head is read and computed only for rows that want logits") {
  const std::vector<OpCost> ops = {linear(100e6, 200e6), linear(50e6, 100e6, true)};
  CHECK(limit_time(ops, {{100, 0, 0, 0}}, kPeaks).seconds == doctest::Approx(20e-3));
  CHECK(limit_time(ops, {{100, 1, 0, 0}}, kPeaks).seconds == doctest::Approx(21e-3));
  CHECK(limit_time(ops, {{100, 100, 0, 0}}, kPeaks).seconds == doctest::Approx(30e-3));
}

TEST_CASE("no limit without a peak that is needed, or without ops") {
  const Peaks no_reads = {0, 1e12, 1e12, 1e12};
  const Peaks no_bf16 = {50e9, 1e12, 0, 1e12};
  CHECK(limit_time({linear(1e6, 1e6)}, {{1, 1, 0, 0}}, no_reads).name.empty());
  CHECK(limit_time({linear(1e6, 1e6)}, {{1, 1, 0, 0}}, no_bf16).name == "memory");
  CHECK(limit_time({{Arithmetic::kBf16, false, 1e6, 1e6, 0, 0}}, {{1, 1, 0, 0}}, no_bf16).name.empty());
  CHECK(limit_time({}, {{1, 1, 0, 0}}, kPeaks).name.empty());
}

TEST_CASE("a prompt's steps are its chunks; its last row wants logits") {
  BenchConfig config;
  config.chunk = 4;
  const std::vector<StepWork> steps = steps_of({Kind::kPrefill, 6, 1, 10}, config);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].rows == 4);
  CHECK(steps[0].head_rows == 0);
  CHECK(steps[0].keys_read == 14);
  CHECK(steps[0].keys_seen == 11 + 12 + 13 + 14);
  CHECK(steps[1].rows == 2);
  CHECK(steps[1].head_rows == 1);
  CHECK(steps[1].keys_read == 16);
  CHECK(steps[1].keys_seen == 15 + 16);
}

TEST_CASE("a decode step has one row a sequence, each with its keys") {
  const std::vector<StepWork> steps = steps_of({Kind::kDecode, 2, 3, 10}, BenchConfig{});
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].rows == 3);
  CHECK(steps[0].head_rows == 3);
  CHECK(steps[0].keys_read == 33);
  CHECK(steps[1].keys_seen == 36);
}

TEST_CASE("a window bounds what a row sees and what a step reads") {
  BenchConfig config;
  config.chunk = 4;
  config.window = 5;
  const std::vector<StepWork> steps = steps_of({Kind::kPrefill, 4, 1, 3}, config);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].keys_seen == 4 + 5 + 5 + 5);
  CHECK(steps[0].keys_read == 7);
  CHECK(steps_of({Kind::kDecode, 1, 1, 100}, config)[0].keys_read == 5);
}

TEST_CASE("the share is that of the median repetition, each against its own reads") {
  const std::vector<OpCost> ops = {linear(100e6, 0)};
  Measurement measurement{{Kind::kDecode, 1, 1, 0}, 0, 0, {}};
  // 2 ms of reads at 50 GB/s and 1 ms at 100.
  measurement.repetitions = {{4e-3, 50e9, true}, {4e-3, 100e9, true}, {5e-3, 50e9, true}};
  LimitShare share = limit_share(measurement, ops, BenchConfig{}, kPeaks);
  CHECK(share.fraction == doctest::Approx(0.4));
  CHECK(share.read_bytes_per_s == doctest::Approx(50e9));
  CHECK(share.name == "memory");
  CHECK(share.is_steady);
  measurement.repetitions[1].is_steady = false;
  CHECK_FALSE(limit_share(measurement, ops, BenchConfig{}, kPeaks).is_steady);
  measurement.repetitions[1].read_bytes_per_s = 0;
  CHECK(limit_share(measurement, ops, BenchConfig{}, kPeaks).name.empty());
}

}  // namespace
}  // namespace tandem::bench
