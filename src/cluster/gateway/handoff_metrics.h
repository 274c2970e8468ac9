#pragma once
// HandoffMetrics: how long requests take through each part of a hand-off, and what goes wrong. Gateway thread, but for
// reject(). Also measures how fast the cluster prefills, for admission.

#include <cstdint>
#include <map>
#include <string>

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

class HandoffMetrics {
 public:
  HandoffMetrics(MetricRegistry& registry, const std::string& model_name, double prefill_tokens_per_s);

  void on_arrival(const handoff::RequestId& id, uint64_t num_prompt, handoff::Nanos now);
  void on_moved(const role::RequestMoved& moved, handoff::Nanos now);
  void on_token(const handoff::TokenEntry& entry, handoff::Nanos now);
  void on_end(const handoff::RequestId& id) { requests_.erase(id); }
  void on_levels(const role::Gateway& policy, uint32_t num_queued, uint64_t num_mass_losses);
  void reject() { rejections_.add(); }  // any thread

  double seconds_per_prefill_token() const { return pace_.seconds_per_token(); }

 private:
  struct Times {  // 0: has not happened in this attempt
    uint64_t num_prompt = 0;
    handoff::Nanos arrived = 0, reserving = 0, prefilling = 0, sampled = 0;
    handoff::Nanos last_token = 0;
    role::Cause lost_by = role::Cause::kProgress;  // the next token ends the gap
    bool is_prefilling = false;
  };
  struct Levels {
    uint64_t suspicions = 0, stale = 0, mismatches = 0, mass_losses = 0;
  };

  MetricRegistry& registry_;
  HistogramMetric &queue_, &reserve_, &prefill_, &transfer_, &first_token_;
  Counter &suspicions_, &stale_, &mismatches_, &mass_losses_, &rejections_, &generated_, &prompt_tokens_;
  Gauge &running_, &waiting_, &queued_, &open_nodes_;
  PrefillPace pace_;
  Levels seen_;
  std::map<handoff::RequestId, Times> requests_;
};

const char* cause_name(role::Cause cause);

}  // namespace tandem::gateway
