#include "cluster/gateway/handoff_metrics.h"

#include <algorithm>
#include <vector>

namespace tandem::gateway {

using handoff::Nanos;
using role::Cause;
using Phase = handoff::GatewayRequest::Phase;

namespace {

const std::vector<double> kSeconds = {.001, .0025, .005, .01, .025, .05, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60};

double seconds_of(Nanos span) { return static_cast<double>(span) * 1e-9; }

void add_since(Counter& counter, uint64_t now, uint64_t& seen) {
  counter.add(now - seen);
  seen = now;
}

}  // namespace

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::kProgress: return "progress";
    case Cause::kSilence: return "silence";
    case Cause::kClosed: return "closed";
    case Cause::kStuck: return "stuck";
    case Cause::kTransfer: return "transfer";
    case Cause::kFailed: return "failed";
    case Cause::kTimeout: return "timeout";
    case Cause::kPlanned: return "planned";
  }
  return "progress";
}

void PrefillPace::begin(Nanos now) {
  if (num_running_++ == 0) busy_since_ = now;
}

void PrefillPace::end(uint64_t num_tokens, Nanos now) {
  seconds_ += seconds_of(now - busy_since_);
  busy_since_ = now;
  --num_running_;
  tokens_ += static_cast<double>(num_tokens);
  if (tokens_ < kForgetAt) return;
  tokens_ /= 2;
  seconds_ /= 2;
}

HandoffMetrics::HandoffMetrics(MetricRegistry& registry, const std::string& model_name, double prefill_tokens_per_s)
    : registry_(registry),
      queue_(registry.histogram("tandem_handoff_queue_seconds", "From arrival to the first attempt.", kSeconds)),
      reserve_(registry.histogram("tandem_handoff_reserve_seconds", "From an attempt's start to its reservation.",
                                  kSeconds)),
      prefill_(registry.histogram("tandem_handoff_prefill_seconds",
                                  "From the reservation to the first token, early from the source.", kSeconds)),
      transfer_(registry.histogram("tandem_handoff_transfer_seconds",
                                   "From the source's first token to the target's.", kSeconds)),
      first_token_(registry.histogram("tandem_handoff_first_token_seconds", "From arrival to the first token.",
                                      kSeconds)),
      suspicions_(registry.counter("tandem_handoff_suspicions_total", "Nodes given up because they were silent.")),
      stale_(registry.counter("tandem_handoff_stale_total", "Messages and tokens of older sessions and attempts.")),
      mismatches_(registry.counter("tandem_token_mismatch_total", "Tokens that came again and were others.")),
      mass_losses_(registry.counter("tandem_registry_mass_losses_total",
                                    "Views that lost most nodes at once and were not believed.")),
      rejections_(registry.counter("vllm:admission_rejections_total", "Requests refused at submission.",
                                   {{"model_name", model_name}, {"engine", "0"}})),
      generated_(registry.counter("vllm:generation_tokens_total", "Tokens generated.",
                                  {{"model_name", model_name}, {"engine", "0"}})),
      prompt_tokens_(registry.counter("vllm:prompt_tokens_total", "Prompt tokens computed or taken from a cache.",
                                      {{"model_name", model_name}, {"engine", "0"}})),
      running_(registry.gauge("vllm:num_requests_running", "Requests that a pair of nodes has.",
                              {{"model_name", model_name}, {"engine", "0"}})),
      waiting_(registry.gauge("vllm:num_requests_waiting", "Requests that no pair of nodes has.",
                              {{"model_name", model_name}, {"engine", "0"}})),
      queued_(registry.gauge("tandem_queued_requests", "Requests submitted that no pair of nodes has taken yet.")),
      open_nodes_(registry.gauge("tandem_gateway_open_nodes", "Nodes with a session.")),
      pace_(prefill_tokens_per_s) {}

void HandoffMetrics::on_arrival(const handoff::RequestId& id, uint64_t num_prompt, Nanos now) {
  Times times;
  times.num_prompt = num_prompt;
  times.arrived = now;
  requests_.emplace(id, times);
}

void HandoffMetrics::on_moved(const role::RequestMoved& moved, Nanos now) {
  const auto it = requests_.find(moved.request);
  if (it == requests_.end()) return;
  Times& times = it->second;
  if (times.is_prefilling && moved.to != Phase::kPrefilling) {
    times.is_prefilling = false;
    const bool is_complete = moved.cause == Cause::kProgress;  // perhaps to its only token
    pace_.end(is_complete ? times.num_prompt : 0, now);
  }
  if (moved.from == Phase::kQueued) queue_.observe(seconds_of(now - times.arrived));
  const bool is_lost = moved.is_new_attempt && moved.attempt > 1;
  if (is_lost || moved.to == Phase::kWaiting) {
    registry_.counter("tandem_handoff_attempts_total", "Attempts given up, by why.",
                      {{"cause", cause_name(moved.cause)}}).add();
    if (times.last_token > 0 && times.lost_by == Cause::kProgress) times.lost_by = moved.cause;
  }
  if (moved.to == Phase::kReserving) {
    times.reserving = now;
    times.prefilling = times.sampled = 0;
  } else if (moved.to == Phase::kPrefilling) {
    reserve_.observe(seconds_of(now - times.reserving));
    times.prefilling = now;
    times.is_prefilling = true;
    pace_.begin(now);
  } else if (moved.to == Phase::kDecoding && moved.from == Phase::kPrefilling) {
    if (times.sampled > 0) transfer_.observe(seconds_of(now - times.sampled));
    else prefill_.observe(seconds_of(now - times.prefilling));
  }
}

void HandoffMetrics::on_token(const handoff::TokenEntry& entry, Nanos now) {
  generated_.add();
  const auto it = requests_.find(entry.request);
  if (it == requests_.end()) return;
  Times& times = it->second;
  if (times.is_prefilling && times.sampled == 0) {
    times.sampled = now;
    prefill_.observe(seconds_of(now - times.prefilling));
  }
  if (times.last_token == 0) {
    first_token_.observe(seconds_of(now - times.arrived));
    prompt_tokens_.add(times.num_prompt);
  } else if (times.lost_by != Cause::kProgress) {
    registry_.histogram("tandem_handoff_failover_gap_seconds",
                        "Between the last token of an attempt that was given up and the next one, by why.", kSeconds,
                        {{"cause", cause_name(times.lost_by)}}).observe(seconds_of(now - times.last_token));
    times.lost_by = Cause::kProgress;
  }
  times.last_token = now;
}

void HandoffMetrics::on_levels(const role::Gateway& policy, uint32_t num_queued, uint64_t num_mass_losses) {
  add_since(suspicions_, policy.num_suspicions(), seen_.suspicions);
  add_since(stale_, policy.num_stale(), seen_.stale);
  add_since(mismatches_, policy.num_mismatches(), seen_.mismatches);
  add_since(mass_losses_, num_mass_losses, seen_.mass_losses);
  uint32_t num_waiting = 0;
  for (const auto& [id, request] : policy.requests()) {
    num_waiting += request->phase() == Phase::kQueued || request->phase() == Phase::kWaiting;
  }
  running_.set(static_cast<double>(policy.requests().size() - num_waiting));
  waiting_.set(num_waiting);
  queued_.set(num_queued);
  open_nodes_.set(static_cast<double>(std::ranges::count_if(
      policy.links(), [](const auto& link) { return link.second.state == role::LinkState::kOpen; })));
}

}  // namespace tandem::gateway
