#pragma once
// StepHistory: a StepExecutor around another one that remembers what the newest steps were and how long each took. It
// is the node's own clock of its steps, apart from whatever lies between them and a client. Engine thread, except
// where a function says otherwise.

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/thread_safety.h"
#include "serve/sched/batch.h"

namespace tandem::node {

struct StepRecord {
  uint64_t number = 0;  // from 1, in the order in which they end
  int64_t took_ns = 0;
  uint32_t num_decode_rows = 0;  // items of one token that samples
  uint32_t num_prompt_tokens = 0;
};

class StepHistory final : public sched::StepExecutor {
 public:
  static constexpr size_t kCapacity = 8192;

  // All outlive it. Makes the histogram tandem_node_step_seconds of `metrics`, by what a step computes.
  StepHistory(sched::StepExecutor& executor, const Clock& clock, MetricRegistry& metrics);

  Result<sched::StepOutcome> execute(const sched::Batch& batch) override;
  Result<sched::StepOutcome> execute_observed(const sched::Batch& batch, sched::StepObserver& observer) override;
  bool nests_steps() const override { return executor_.nests_steps(); }

  // The newest ones, oldest first. Any thread.
  std::vector<StepRecord> newest() const;
  // {"steps":[[number, milliseconds, decode rows, prompt tokens], ...]}. Any thread.
  std::string json() const;

 private:
  template <class Execute>
  Result<sched::StepOutcome> timed(const sched::Batch& batch, const Execute& execute);
  void note(const sched::Batch& batch, int64_t took_ns);

  sched::StepExecutor& executor_;
  const Clock& clock_;
  HistogramMetric &decode_, &prefill_, &both_;
  int64_t nested_ns_ = 0;  // what steps inside of the one under way took, which is not its own time
  mutable Mutex mutex_;
  std::vector<StepRecord> ring_ GUARDED_BY(mutex_);
  uint64_t num_steps_ GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::node
