#include "cluster/node/step_history.h"

#include <cstdio>
#include <utility>

namespace tandem::node {
namespace {

constexpr const char* kName = "tandem_node_step_seconds";
constexpr const char* kHelp = "How long a step took, by what it computes.";

HistogramMetric& histogram_of(MetricRegistry& metrics, const char* kind) {
  return metrics.histogram(kName, kHelp,
                           {0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5},
                           {{"kind", kind}});
}

}  // namespace

StepHistory::StepHistory(sched::StepExecutor& executor, const Clock& clock, MetricRegistry& metrics)
    : executor_(executor),
      clock_(clock),
      decode_(histogram_of(metrics, "decode")),
      prefill_(histogram_of(metrics, "prefill")),
      both_(histogram_of(metrics, "both")) {}

template <class Execute>
Result<sched::StepOutcome> StepHistory::timed(const sched::Batch& batch, const Execute& execute) {
  const int64_t nested_before_ns = std::exchange(nested_ns_, 0);
  const int64_t begin_ns = clock_.now_ns();
  auto outcome = execute();
  const int64_t took_ns = clock_.now_ns() - begin_ns;
  note(batch, took_ns - nested_ns_);
  nested_ns_ = nested_before_ns + took_ns;
  return outcome;
}

Result<sched::StepOutcome> StepHistory::execute(const sched::Batch& batch) {
  return timed(batch, [&] { return executor_.execute(batch); });
}

Result<sched::StepOutcome> StepHistory::execute_observed(const sched::Batch& batch, sched::StepObserver& observer) {
  return timed(batch, [&] { return executor_.execute_observed(batch, observer); });
}

void StepHistory::note(const sched::Batch& batch, int64_t took_ns) {
  StepRecord record;
  record.took_ns = took_ns;
  for (const sched::BatchItem& item : batch.items) {
    if (item.count == 1 && item.samples) ++record.num_decode_rows;
    else record.num_prompt_tokens += item.count;
  }
  const double seconds = static_cast<double>(took_ns) * 1e-9;
  (record.num_prompt_tokens == 0 ? decode_ : record.num_decode_rows == 0 ? prefill_ : both_).observe(seconds);
  Lock lock(mutex_);
  record.number = ++num_steps_;
  if (ring_.size() < kCapacity) ring_.push_back(record);
  else ring_[(record.number - 1) % kCapacity] = record;
}

std::vector<StepRecord> StepHistory::newest() const {
  Lock lock(mutex_);
  if (ring_.size() < kCapacity) return ring_;
  const auto oldest = ring_.begin() + static_cast<long>(num_steps_ % kCapacity);
  std::vector<StepRecord> records(oldest, ring_.end());
  records.insert(records.end(), ring_.begin(), oldest);
  return records;
}

std::string StepHistory::json() const {
  std::string text = "{\"steps\":[";
  for (const StepRecord& record : newest()) {
    char line[96];
    std::snprintf(line, sizeof line, "%s[%llu,%.4f,%u,%u]", text.back() == '[' ? "" : ",",
                  static_cast<unsigned long long>(record.number), static_cast<double>(record.took_ns) * 1e-6,
                  record.num_decode_rows, record.num_prompt_tokens);
    text += line;
  }
  return text + "]}";
}

}  // namespace tandem::node
