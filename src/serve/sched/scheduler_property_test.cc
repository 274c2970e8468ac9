// Random operations against scheduler, pool and scripted executor: a million, or as many as TANDEM_PROPERTY_OPS says.

#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "serve/sched/op_driver.h"

namespace tandem::sched {
namespace {

// KVC-05 fails when cancel() or commit() releases a block twice or not at all, KVC-08 when preempt() forgets a token,
// KVC-01 when publish_blocks() goes by what a sequence has instead of by what is computed.
TEST_CASE("KVC-01, KVC-05, KVC-08: whatever happens in whatever order, the invariants hold and every token is right") {
  const char* wanted = std::getenv("TANDEM_PROPERTY_OPS");
  const uint64_t num_ops = wanted && *wanted ? std::stoull(wanted) : 1'000'000;
  constexpr uint64_t kOpsPerRun = 4000;
  uint64_t num_finished = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_hits = 0;
  uint64_t num_evictions = 0;
  for (uint64_t seed = 0; seed * kOpsPerRun < num_ops; ++seed) {
    std::mt19937_64 random(seed);
    const OpDriver::Source source = [&random](uint32_t below) { return static_cast<uint32_t>(random() % below); };
    OpDriver driver(OpDriver::random_config(source), source);
    for (uint64_t i = 0; i < kOpsPerRun; ++i) driver.run_op();
    driver.drain();
    num_finished += driver.num_finished();
    num_preemptions += driver.scheduler().counts().num_preemptions;
    num_hits += driver.scheduler().counts().prefix_hits_tokens;
    num_evictions += driver.scheduler().pool().num_evictions();
  }
  // The run reached what it is for.
  CHECK(num_finished > num_ops / 40);
  CHECK(num_preemptions > num_ops / 200);
  CHECK(num_hits > num_ops / 40);
  CHECK(num_evictions > num_ops / 200);
}

}  // namespace
}  // namespace tandem::sched
