#pragma once
// EngineMetrics: what the engine knows, under our names and under vLLM's (so that existing dashboards work).
// Engine thread, but for reject(). Names: vLLM v1 metrics loggers.

#include <cstdint>
#include <string>

#include "base/metrics.h"
#include "base/result.h"
#include "serve/sched/scheduler.h"

namespace tandem::engine {

// The times of one request, on the engine's clock; 0: has not happened.
struct RequestTimes {
  int64_t arrival_ns = 0;
  int64_t scheduled_ns = 0;
  int64_t first_token_ns = 0;
  int64_t end_ns = 0;
};

class EngineMetrics {
 public:
  EngineMetrics(MetricRegistry& registry, const std::string& model_name, const sched::SchedulerConfig& config);

  void on_step(const sched::Scheduler& scheduler, const sched::CommitResult& result, double seconds);
  void on_levels(const sched::Scheduler& scheduler, uint32_t num_queued);  // also when nothing runs
  void on_end(const RequestTimes& times);
  void on_step_failure() { step_failures_.add(); }
  void on_request_failure() { request_failures_.add(); }
  void reject() { rejections_.add(); }  // any thread

 private:
  void on_totals(const sched::Scheduler& scheduler);
  void declare_cache(const sched::SchedulerConfig& config);

  MetricRegistry& registry_;
  Labels labels_;
  Gauge& running_;
  Gauge& waiting_;
  Gauge& waiting_for_room_;
  Gauge& kv_usage_;
  Gauge& kv_usage_old_;
  Counter& prefix_queries_;
  Counter& prefix_hits_;
  Counter& prefix_queries_old_;
  Counter& prefix_hits_old_;
  Counter& preemptions_;
  Counter& prompt_tokens_;
  Counter& prompt_tokens_computed_;
  Counter& prompt_tokens_from_cache_;
  Counter& generation_tokens_;
  Counter& recomputed_tokens_;
  Counter& cached_tokens_;
  Counter& rejections_;
  HistogramMetric& step_tokens_;
  HistogramMetric& queue_time_;
  HistogramMetric& prefill_time_;
  HistogramMetric& decode_time_;
  HistogramMetric& inference_time_;
  HistogramMetric& step_seconds_;
  Gauge& step_cost_error_;
  Counter& step_failures_;
  Counter& request_failures_;
  Counter& evictions_;
  Gauge& queued_requests_;
  Gauge& free_blocks_;
  Gauge& cached_blocks_;
  Gauge& owned_blocks_;
  sched::SchedulerCounts seen_;
  uint64_t evictions_seen_ = 0;
};

}  // namespace tandem::engine
