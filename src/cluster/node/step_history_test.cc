#include "cluster/node/step_history.h"

#include <doctest/doctest.h>

namespace tandem::node {
namespace {

class Counting final : public sched::StepExecutor {
 public:
  explicit Counting(ManualClock& clock) : clock_(clock) {}
  Result<sched::StepOutcome> execute(const sched::Batch& batch) override {
    clock_.advance_ns(1'000'000 * batch.num_tokens);
    return sched::StepOutcome{};
  }

 private:
  ManualClock& clock_;
};

sched::Batch batch_of(uint32_t num_decodes, uint32_t num_prompt) {
  sched::Batch batch;
  sched::BatchItem item;
  item.count = 1;
  item.samples = true;
  batch.items.assign(num_decodes, item);
  item.count = num_prompt;
  item.samples = false;
  if (num_prompt > 0) batch.items.push_back(item);
  batch.num_tokens = num_decodes + num_prompt;
  return batch;
}

TEST_CASE("steps are remembered by what they computed, the newest of them, oldest first") {
  ManualClock clock;
  Counting executor(clock);
  MetricRegistry metrics;
  StepHistory history(executor, clock, metrics);
  CHECK(history.json() == "{\"steps\":[]}");
  CHECK(history.execute(batch_of(4, 0)));
  CHECK(history.execute(batch_of(0, 7)));
  CHECK(history.execute(batch_of(2, 3)));
  CHECK(history.json() == "{\"steps\":[[1,4.0000,4,0],[2,7.0000,0,7],[3,5.0000,2,3]]}");
  const std::string text = metrics.exposition();
  for (const char* kind : {"decode", "prefill", "both"}) {
    CHECK(text.find(std::string("tandem_node_step_seconds_count{kind=\"") + kind + "\"} 1") != std::string::npos);
  }
  for (size_t i = 0; i < StepHistory::kCapacity; ++i) CHECK(history.execute(batch_of(1, 0)));
  const std::vector<StepRecord> newest = history.newest();
  REQUIRE(newest.size() == StepHistory::kCapacity);
  CHECK(newest.front().number == 4);
  CHECK(newest.back().number == StepHistory::kCapacity + 3);
  for (size_t i = 1; i < newest.size(); ++i) CHECK(newest[i].number == newest[i - 1].number + 1);
}

// Runs a batch of its own inside of the one it is given.
class Nesting final : public sched::StepExecutor, public sched::StepObserver {
 public:
  explicit Nesting(ManualClock& clock) : clock_(clock) {}
  Result<sched::StepOutcome> execute(const sched::Batch& batch) override {
    clock_.advance_ns(1'000'000 * batch.num_tokens);
    return sched::StepOutcome{};
  }
  Result<sched::StepOutcome> execute_observed(const sched::Batch& batch, sched::StepObserver& observer) override {
    observer.on_layers_written(1);
    return execute(batch);
  }
  bool nests_steps() const override { return true; }
  void on_layers_written(uint32_t) override { CHECK(history->execute(batch_of(3, 0))); }
  StepHistory* history = nullptr;

 private:
  ManualClock& clock_;
};

TEST_CASE("a step's time is its own, without that of a step inside of it") {
  ManualClock clock;
  Nesting executor(clock);
  MetricRegistry metrics;
  StepHistory history(executor, clock, metrics);
  executor.history = &history;
  CHECK(history.nests_steps());
  CHECK(history.execute_observed(batch_of(0, 9), executor));
  CHECK(history.execute(batch_of(1, 0)));
  CHECK(history.json() == "{\"steps\":[[1,3.0000,3,0],[2,9.0000,0,9],[3,1.0000,1,0]]}");
}

}  // namespace
}  // namespace tandem::node
