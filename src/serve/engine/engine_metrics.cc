#include "serve/engine/engine_metrics.h"

#include <algorithm>
#include <vector>

#include "serve/cost/step_cost.h"
#include "serve/kv/block_pool.h"

namespace tandem::engine {
namespace {

// vLLM's buckets, which dashboards divide by, and below them what is fast.
const std::vector<double> kRequestSeconds = {.001, .0025, .005, .01, .025, .05, .1, .2, .3,  .5,  .8,  1,   1.5,  2,
                                             2.5,  5,     10,   15,  20,   30,  40, 50, 60,  120, 240, 480, 960,  1920,
                                             7680};
const std::vector<double> kStepTokens = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kStepSeconds = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10};

Labels with(Labels labels, const char* name, const char* value) {
  labels.emplace_back(name, value);
  return labels;
}

// A count that went back, which would be a fault of ours, adds nothing: metrics never break serving.
uint64_t since(uint64_t now, uint64_t seen) { return now > seen ? now - seen : 0; }

double seconds_between(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

}  // namespace

EngineMetrics::EngineMetrics(MetricRegistry& registry, const std::string& model_name,
                             const sched::SchedulerConfig& config)
    : registry_(registry),
      labels_({{"model_name", model_name}, {"engine", "0"}}),
      running_(registry_.gauge("vllm:num_requests_running", "Sequences that hold KV blocks.", labels_)),
      waiting_(registry_.gauge("vllm:num_requests_waiting", "Sequences that wait for a place in a step.", labels_)),
      waiting_for_room_(registry_.gauge("vllm:num_requests_waiting_by_reason", "Sequences that wait, by what for.",
                                        with(labels_, "reason", "capacity"))),
      kv_usage_(registry_.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels_)),
      kv_usage_old_(registry_.gauge("vllm:gpu_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels_)),
      prefix_queries_(registry_.counter("vllm:prefix_cache_queries_total",
                                        "Prompt tokens looked up in the prefix cache.", labels_)),
      prefix_hits_(registry_.counter("vllm:prefix_cache_hits_total",
                                     "Prompt tokens found in the prefix cache.", labels_)),
      prefix_queries_old_(registry_.counter("vllm:gpu_prefix_cache_queries_total",
                                            "Prompt tokens looked up in the prefix cache.", labels_)),
      prefix_hits_old_(registry_.counter("vllm:gpu_prefix_cache_hits_total",
                                         "Prompt tokens found in the prefix cache.", labels_)),
      preemptions_(registry_.counter("vllm:num_preemptions_total", "Sequences preempted.", labels_)),
      prompt_tokens_(registry_.counter("vllm:prompt_tokens_total", "Prompt tokens computed or taken from a cache.",
                                       labels_)),
      prompt_tokens_computed_(registry_.counter("vllm:prompt_tokens_by_source_total",
                                                "Prompt tokens by where their KV came from.",
                                                with(labels_, "source", "local_compute"))),
      prompt_tokens_from_cache_(registry_.counter("vllm:prompt_tokens_by_source_total",
                                                  "Prompt tokens by where their KV came from.",
                                                  with(labels_, "source", "local_cache_hit"))),
      generation_tokens_(registry_.counter("vllm:generation_tokens_total", "Tokens generated.", labels_)),
      recomputed_tokens_(registry_.counter("vllm:prompt_tokens_recomputed_total",
                                           "Tokens whose KV was given up by preemption.", labels_)),
      cached_tokens_(registry_.counter("vllm:prompt_tokens_cached_total",
                                       "Prompt tokens taken from the prefix cache.", labels_)),
      rejections_(registry_.counter("vllm:admission_rejections_total", "Requests refused at submission.", labels_)),
      step_tokens_(registry_.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", kStepTokens,
                                       labels_)),
      queue_time_(registry_.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.",
                                      kRequestSeconds, labels_)),
      prefill_time_(registry_.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.",
                                        kRequestSeconds, labels_)),
      decode_time_(registry_.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                                       kRequestSeconds, labels_)),
      inference_time_(registry_.histogram("vllm:request_inference_time_seconds", "From the first step to the end.",
                                          kRequestSeconds, labels_)),
      step_seconds_(registry_.histogram("tandem_step_seconds", "Duration of a step.", kStepSeconds)),
      step_cost_error_(registry_.gauge("tandem_step_cost_relative_error",
                                       "Smoothed error of the predicted step time, relative to the measured.")),
      step_failures_(registry_.counter("tandem_step_failures_total", "Steps that failed as a whole.")),
      request_failures_(registry_.counter("tandem_request_failures_total", "Requests ended by an error of their own.")),
      evictions_(registry_.counter("tandem_kv_evictions_total", "Cached KV blocks given to another use.")),
      queued_requests_(registry_.gauge("tandem_queued_requests", "Requests submitted and not yet in any step.")),
      free_blocks_(registry_.gauge("tandem_kv_blocks", "KV blocks by state.", with({}, "state", "free"))),
      cached_blocks_(registry_.gauge("tandem_kv_blocks", "KV blocks by state.", with({}, "state", "cached"))),
      owned_blocks_(registry_.gauge("tandem_kv_blocks", "KV blocks by state.", with({}, "state", "owned"))) {
  declare_cache(config);
}

// Facts as labels, as vLLM's dashboards read them.
void EngineMetrics::declare_cache(const sched::SchedulerConfig& config) {
  Labels labels = labels_;
  labels.emplace_back("block_size", std::to_string(config.block_size));
  labels.emplace_back("num_gpu_blocks", std::to_string(config.num_blocks));
  labels.emplace_back("enable_prefix_caching", config.enable_prefix_caching ? "True" : "False");
  registry_.gauge("vllm:cache_config_info", "How the KV pool is made up; always 1.", labels).set(1);
}

void EngineMetrics::on_totals(const sched::Scheduler& scheduler) {
  const sched::SchedulerCounts now = scheduler.counts();
  const uint64_t num_queried = since(now.prefix_queries_tokens, seen_.prefix_queries_tokens);
  for (Counter* queries : {&prefix_queries_, &prefix_queries_old_}) queries->add(num_queried);
  const uint64_t num_hit = since(now.prefix_hits_tokens, seen_.prefix_hits_tokens);
  for (Counter* hits : {&prefix_hits_, &prefix_hits_old_}) hits->add(num_hit);
  preemptions_.add(since(now.num_preemptions, seen_.num_preemptions));
  recomputed_tokens_.add(since(now.num_recomputed_tokens, seen_.num_recomputed_tokens));
  evictions_.add(since(scheduler.pool().num_evictions(), evictions_seen_));
  seen_ = now;
  evictions_seen_ = scheduler.pool().num_evictions();
}

void EngineMetrics::on_levels(const sched::Scheduler& scheduler, uint32_t num_queued) {
  const sched::SchedulerCounts now = scheduler.counts();
  const kv::BlockPool& pool = scheduler.pool();
  const double usage = pool.num_blocks() == 0 ? 0 : static_cast<double>(pool.num_owned()) / pool.num_blocks();
  running_.set(now.num_running);
  waiting_.set(now.num_waiting);
  waiting_for_room_.set(now.num_waiting);
  queued_requests_.set(num_queued);
  kv_usage_.set(usage);
  kv_usage_old_.set(usage);
  free_blocks_.set(pool.num_free());
  cached_blocks_.set(pool.num_cached());
  owned_blocks_.set(pool.num_owned());
}

void EngineMetrics::on_step(const sched::Scheduler& scheduler, const sched::CommitResult& result, double seconds) {
  on_totals(scheduler);
  const uint64_t num_prompt = result.completed_prompt_tokens;
  const uint64_t num_cached = std::min<uint64_t>(result.cached_prompt_tokens, num_prompt);
  prompt_tokens_.add(num_prompt);
  for (Counter* cached : {&cached_tokens_, &prompt_tokens_from_cache_}) cached->add(num_cached);
  prompt_tokens_computed_.add(num_prompt - num_cached);
  generation_tokens_.add(result.num_output_tokens);
  const cost::StepShape& shape = scheduler.shape();
  step_tokens_.observe(static_cast<double>(shape.num_prefill_tokens + shape.num_decode_rows));
  step_seconds_.observe(seconds);
  step_cost_error_.set(scheduler.cost().relative_error());
}

void EngineMetrics::on_end(const RequestTimes& times) {
  if (times.scheduled_ns == 0) return;
  queue_time_.observe(seconds_between(times.arrival_ns, times.scheduled_ns));
  inference_time_.observe(seconds_between(times.scheduled_ns, times.end_ns));
  if (times.first_token_ns == 0) return;
  prefill_time_.observe(seconds_between(times.scheduled_ns, times.first_token_ns));
  decode_time_.observe(seconds_between(times.first_token_ns, times.end_ns));
}

}  // namespace tandem::engine
