#pragma once
// HandoffMetrics: how long requests take through each part of a hand-off, and what goes wrong. Gateway thread, but for
// reject(). Also measures how fast the cluster prefills, for admission.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/metrics.h"
#include "cluster/role/gateway.h"

namespace tandem::gateway {

// Seconds of the whole cluster per prompt token, while something prefills. Old measurements fade.
class PrefillPace {
 public:
  explicit PrefillPace(double tokens_per_s) : seconds_(kPriorTokens / tokens_per_s) {}

  void begin(handoff::Nanos now);
  void end(uint64_t num_tokens, handoff::Nanos now);  // 0 tokens: given up
  double seconds_per_token() const { return seconds_ / tokens_; }

 private:
  static constexpr double kPriorTokens = 1000, kForgetAt = 100000;

  double tokens_ = kPriorTokens, seconds_;
  uint32_t num_running_ = 0;
  handoff::Nanos busy_since_ = 0;
};

// A part of a request's way that was measured, for its timeline.
struct MeasuredPart {
  handoff::RequestId request;
  std::string name, node;  // node: whose clock it was; empty: the gateway's
  handoff::Attempt attempt = 0;
  handoff::Nanos began_at = 0, duration = 0;  // began_at: of the gateway's clock
  const char* cause = "";                     // of a recovery
};
using PartSink = std::function<void(const MeasuredPart&)>;

class HandoffMetrics {
 public:
  HandoffMetrics(MetricRegistry& registry, const std::string& model_name, double prefill_tokens_per_s);

  // hides_tokens: the client asks for none, so that its token says nothing of how long answers are.
  void on_arrival(const handoff::RequestId& id, uint64_t num_prompt, handoff::Nanos now, bool hides_tokens = false);
  void on_moved(const role::RequestMoved& moved, handoff::Nanos now);
  void on_token(const handoff::TokenEntry& entry, handoff::Nanos now);
  void on_timings(const role::NodeTimings& told, handoff::Nanos now);
  void on_end(const handoff::RequestId& id);
  void on_levels(const role::Gateway& policy, uint32_t num_queued, uint64_t num_mass_losses);
  void on_kv_usage(double usage);  // of all decoding nodes, 0 to 1
  void reject() { rejections_.add(); }  // any thread
  void set_part_sink(PartSink sink) { part_sink_ = std::move(sink); }

  double seconds_per_prefill_token() const { return pace_.seconds_per_token(); }
  // Of answers lately; 0: there was none.
  double seconds_per_output_token() const { return seconds_per_output_; }
  double mean_output_tokens() const { return mean_output_; }

 private:
  struct Times {  // 0: has not happened in this attempt; arrived, begun and first_token are the request's
    uint64_t num_prompt = 0;
    handoff::Nanos arrived = 0, begun = 0, reserving = 0, prefilling = 0, sampled = 0;
    handoff::Nanos first_token = 0, last_token = 0;
    uint32_t num_output = 0;  // of the first choice, and when they came
    handoff::Nanos first_output = 0, last_output = 0;
    bool hides_tokens = false;
    role::Cause lost_by = role::Cause::kProgress;  // the next token ends the gap
    handoff::Nanos lost_at = 0;                    // the first loss in the gap
    handoff::Attempt attempt = 0, recovering = 0;  // recovering: the newest attempt that goes on after a loss
    role::Cause recovering_by = role::Cause::kProgress;
    bool is_prefilling = false;
  };
  struct Levels {
    uint64_t suspicions = 0, false_suspicions = 0, stale = 0, mismatches = 0, mass_losses = 0;
  };

  void observe_failover(const char* part, role::Cause cause, double seconds);
  void end_gap(Times& times, const handoff::TokenEntry& entry, handoff::Nanos now);
  void tell(MeasuredPart part) const {
    if (part_sink_) part_sink_(part);
  }

  MetricRegistry& registry_;
  PartSink part_sink_;
  HistogramMetric &queue_, &reserve_, &transfer_, &first_token_;
  std::map<handoff::Part, HistogramMetric*> of_nodes_;
  Counter &suspicions_, &false_suspicions_, &stale_, &mismatches_, &mass_losses_, &rejections_, &generated_,
      &prompt_tokens_;
  Gauge &running_, &waiting_, &queued_, &open_nodes_, &mirror_lag_, &unprotected_, &bad_pairs_, &credits_;
  // Under the names by which dashboards know them of one process.
  struct VllmNames {
    VllmNames(MetricRegistry& registry, const Labels& labels);
    Counter &computed, &from_cache, &cached, &queries, &hits;
    HistogramMetric &queue, &prefill, &decode, &inference;
    Gauge &kv_usage, &kv_usage_old;
  };
  VllmNames vllm_;
  PrefillPace pace_;
  double seconds_per_output_ = 0, mean_output_ = 0;
  Levels seen_;
  std::map<handoff::RequestId, Times> requests_;
};

const char* cause_name(role::Cause cause);

}  // namespace tandem::gateway
