#include "cluster/gateway/handoff_metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::gateway {

using handoff::Nanos;
using handoff::Part;
using role::Cause;
using Phase = handoff::GatewayRequest::Phase;

namespace {

const std::vector<double> kSeconds = {.0001, .0005, .001, .0025, .005, .01, .025, .05, .1,
                                      .15,   .25,   .5,   1,     2.5,  5,   10,   30,  60};

// vLLM's buckets, which dashboards divide by, and below them what is fast.
const std::vector<double> kPhaseSeconds = {.001, .0025, .005, .01, .025, .05, .1, .2, .3,  .5,  .8,  1,   1.5,  2,
                                           2.5,  5,     10,   15,  20,   30,  40, 50, 60,  120, 240, 480, 960,  1920,
                                           7680};
constexpr const char* kBySource = "Prompt tokens by where their KV came from.";

Labels with_source(Labels labels, const char* source) {
  labels.emplace_back("source", source);
  return labels;
}

double seconds_of(Nanos span) { return static_cast<double>(span) * 1e-9; }

void add_since(Counter& counter, uint64_t now, uint64_t& seen) {
  counter.add(now - seen);
  seen = now;
}

// What a part is in a recovery; empty: it is none of it.
const char* failover_name(Part part) {
  switch (part) {
    case Part::kPrefillQueue: return "wait";
    case Part::kPrefill: return "tail";
    case Part::kTransfer: return "transfer";
    case Part::kFirstEmit: return "first_step";
    default: return "";
  }
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

HandoffMetrics::VllmNames::VllmNames(MetricRegistry& registry, const Labels& labels)
    : computed(registry.counter("vllm:prompt_tokens_by_source_total", kBySource, with_source(labels, "local_compute"))),
      from_cache(
          registry.counter("vllm:prompt_tokens_by_source_total", kBySource, with_source(labels, "local_cache_hit"))),
      cached(registry.counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.", labels)),
      queries(registry.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
                               labels)),
      hits(registry.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", labels)),
      queue(registry.histogram("vllm:request_queue_time_seconds", "From arrival to the first attempt.", kPhaseSeconds,
                               labels)),
      prefill(registry.histogram("vllm:request_prefill_time_seconds", "From the first attempt to the first token.",
                                 kPhaseSeconds, labels)),
      decode(registry.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                                kPhaseSeconds, labels)),
      inference(registry.histogram("vllm:request_inference_time_seconds", "From the first attempt to the last token.",
                                   kPhaseSeconds, labels)),
      kv_usage(registry.gauge("vllm:kv_cache_usage_perc", "Share of the decode nodes' KV blocks in use, 0 to 1.",
                              labels)),
      kv_usage_old(registry.gauge("vllm:gpu_cache_usage_perc", "Share of the decode nodes' KV blocks in use, 0 to 1.",
                                  labels)) {}

HandoffMetrics::HandoffMetrics(MetricRegistry& registry, const std::string& model_name, double prefill_tokens_per_s)
    : registry_(registry),
      queue_(registry.histogram("tandem_handoff_queue_seconds", "From arrival to the first attempt.", kSeconds)),
      reserve_(registry.histogram("tandem_handoff_reserve_seconds", "From an attempt's start to its reservation.",
                                  kSeconds)),
      transfer_(registry.histogram("tandem_handoff_transfer_seconds",
                                   "From the source's first token to the target's.", kSeconds)),
      first_token_(registry.histogram("tandem_handoff_first_token_seconds", "From arrival to the first token.",
                                      kSeconds)),
      suspicions_(registry.counter("tandem_handoff_suspicions_total", "Nodes given up because they were silent.")),
      false_suspicions_(registry.counter("tandem_handoff_false_suspicions_total",
                                         "Nodes given up for their silence that spoke again as the same process.")),
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
      mirror_lag_(registry.gauge("tandem_gateway_mirror_lag_tokens",
                                 "Tokens decoded that the request's mirror lacks, the largest of all requests.")),
      unprotected_(registry.gauge("tandem_gateway_unprotected_requests", "Requests that decode without a mirror.")),
      bad_pairs_(registry.gauge("tandem_gateway_bad_pairs", "Pairs of nodes not chosen, since a transfer failed.")),
      credits_(registry.gauge("tandem_gateway_free_credits",
                              "Prefills that this gateway may still begin at the nodes it speaks to.")),
      vllm_(registry, {{"model_name", model_name}, {"engine", "0"}}),
      pace_(prefill_tokens_per_s) {
  const auto add = [&](Part part, const char* name, const char* help) {
    of_nodes_[part] = &registry.histogram("tandem_handoff_" + std::string(name) + "_seconds", help, kSeconds);
  };
  add(Part::kPrefillQueue, "prefill_queue", "At the source, from its order to its first step with the prompt.");
  add(Part::kPrefill, "prefill", "At the source, from that step to the first token.");
  add(Part::kPush, "push", "At the source, from the first token to the target's word that it has all KV.");
  add(Part::kTransfer, "exposed_transfer", "At the target, from the prefill's end to the gate's opening.");
  add(Part::kDecodeQueue, "decode_queue", "At the target, from the gate's opening to its first step.");
  add(Part::kFirstEmit, "first_emit", "At the target, from its first step's begin to that step's tokens.");
  add(Part::kDecode, "decode", "At the target, from the gate's opening to the last token.");
}

void HandoffMetrics::on_arrival(const handoff::RequestId& id, uint64_t num_prompt, Nanos now, bool hides_tokens) {
  Times times;
  times.hides_tokens = hides_tokens;
  times.num_prompt = num_prompt;
  times.arrived = now;
  requests_.emplace(id, times);
}

void HandoffMetrics::on_end(const handoff::RequestId& id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const Times& times = it->second;
  const auto learn = [](double& mean, double value) { mean += (mean == 0 ? 1 : 0.05) * (value - mean); };
  if (times.num_output > 0) {
    learn(mean_output_, times.num_output);
    vllm_.decode.observe(seconds_of(times.last_token - times.first_token));
    vllm_.inference.observe(seconds_of(times.last_token - times.begun));
  }
  if (times.num_output > 1) {
    learn(seconds_per_output_, seconds_of(times.last_output - times.first_output) / (times.num_output - 1));
  }
  requests_.erase(it);
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
  times.attempt = moved.attempt;
  if (moved.from == Phase::kQueued) {
    queue_.observe(seconds_of(now - times.arrived));
    if (times.begun == 0) vllm_.queue.observe(seconds_of(now - times.arrived));
    if (times.begun == 0) times.begun = now;
    tell({moved.request, "queue", "", moved.attempt, times.arrived, now - times.arrived});
  }
  const bool is_lost = moved.is_new_attempt && moved.attempt > 1;
  if (is_lost || moved.to == Phase::kWaiting) {
    registry_.counter("tandem_handoff_attempts_total", "Attempts given up, by why.",
                      {{"cause", cause_name(moved.cause)}}).add();
    if (times.last_token > 0 && times.lost_by == Cause::kProgress) {
      times.lost_by = times.recovering_by = moved.cause;
      times.lost_at = now;
    }
    if (times.lost_by != Cause::kProgress) times.recovering = moved.attempt;
  }
  if (moved.to == Phase::kReserving) {
    times.reserving = now;
    times.prefilling = times.sampled = 0;
  } else if (moved.to == Phase::kPrefilling) {
    reserve_.observe(seconds_of(now - times.reserving));
    tell({moved.request, "reserve", "", moved.attempt, times.reserving, now - times.reserving});
    times.prefilling = now;
    times.is_prefilling = true;
    pace_.begin(now);
  } else if (moved.to == Phase::kDecoding && moved.from == Phase::kPrefilling) {
    if (times.sampled > 0) transfer_.observe(seconds_of(now - times.sampled));
  }
}

void HandoffMetrics::observe_failover(const char* part, Cause cause, double seconds) {
  registry_.histogram("tandem_handoff_failover_part_seconds",
                      "Of a recovery: detect, control, wait and tail make the gap up to its token; transfer and"
                      " first_step come behind it.", kSeconds,
                      {{"cause", cause_name(cause)}, {"part", part}}).observe(seconds);
}

// `entry` ends the pause that a loss made.
void HandoffMetrics::end_gap(Times& times, const handoff::TokenEntry& entry, Nanos now) {
  const Cause cause = std::exchange(times.lost_by, Cause::kProgress);
  registry_.histogram("tandem_handoff_failover_gap_seconds",
                      "Between the last token of an attempt that was given up and the next one, by why.", kSeconds,
                      {{"cause", cause_name(cause)}}).observe(seconds_of(now - times.last_token));
  // Where the target had the KV already (Running) nobody prefills.
  const Nanos told = times.prefilling > times.lost_at ? times.prefilling : now;
  observe_failover("detect", cause, seconds_of(times.lost_at - times.last_token));
  observe_failover("control", cause, seconds_of(told - times.lost_at));
  const auto add = [&](const char* name, Nanos begin, Nanos end) {
    tell({entry.request, name, "", entry.attempt, begin, end - begin, cause_name(cause)});
  };
  add("recovery", times.last_token, now);
  add("recovery: detect", times.last_token, times.lost_at);
  add("recovery: control", times.lost_at, told);
}

void HandoffMetrics::on_timings(const role::NodeTimings& told, Nanos now) {
  const handoff::Timings& timings = told.timings;
  const auto it = requests_.find(timings.request);
  const bool is_recovery = it != requests_.end() && it->second.recovering == timings.attempt;
  for (const handoff::PartTime& part : timings.parts) {
    const auto histogram = of_nodes_.find(part.part);
    if (histogram == of_nodes_.end()) continue;
    const auto duration = static_cast<Nanos>(std::min<uint64_t>(part.duration_ns, INT64_MAX / 2));
    const auto ago = static_cast<Nanos>(std::min<uint64_t>(part.ended_ago_ns, INT64_MAX / 2));
    histogram->second->observe(seconds_of(duration));
    const std::string name = is_recovery ? failover_name(part.part) : "";
    if (!name.empty()) observe_failover(name.c_str(), it->second.recovering_by, seconds_of(duration));
    tell({timings.request, handoff::name_of(part.part), told.node, timings.attempt, now - ago - duration, duration});
  }
}

void HandoffMetrics::on_token(const handoff::TokenEntry& entry, Nanos now) {
  const auto it = requests_.find(entry.request);
  const bool is_hidden = it != requests_.end() && it->second.hides_tokens;
  if (!is_hidden) generated_.add();
  if (it == requests_.end()) return;
  Times& times = it->second;
  if (times.is_prefilling && times.sampled == 0) {
    times.sampled = now;
  }
  if (entry.choice == 0 && !is_hidden) {
    times.last_output = now;
    if (times.num_output++ == 0) times.first_output = now;
  }
  if (times.last_token == 0) {
    // Of a node that says more than there is, no more counts: the sources add up to the prompt whatever it says.
    const uint64_t num_cached = std::min<uint64_t>(entry.num_cached, times.num_prompt);
    times.first_token = now;
    first_token_.observe(seconds_of(now - times.arrived));
    prompt_tokens_.add(times.num_prompt);
    for (Counter* found : {&vllm_.cached, &vllm_.from_cache, &vllm_.hits}) found->add(num_cached);
    vllm_.computed.add(times.num_prompt - num_cached);
    vllm_.queries.add(times.num_prompt);
    vllm_.prefill.observe(seconds_of(now - times.begun));
  } else if (times.lost_by != Cause::kProgress) {
    end_gap(times, entry, now);
  }
  times.last_token = now;
}

void HandoffMetrics::on_kv_usage(double usage) {
  vllm_.kv_usage.set(usage);
  vllm_.kv_usage_old.set(usage);
}

void HandoffMetrics::on_levels(const role::Gateway& policy, uint32_t num_queued, uint64_t num_mass_losses) {
  add_since(suspicions_, policy.num_suspicions(), seen_.suspicions);
  add_since(false_suspicions_, policy.num_false_suspicions(), seen_.false_suspicions);
  add_since(stale_, policy.num_stale(), seen_.stale);
  add_since(mismatches_, policy.num_mismatches(), seen_.mismatches);
  add_since(mass_losses_, num_mass_losses, seen_.mass_losses);
  uint32_t num_waiting = 0, num_unprotected = 0, lag = 0;
  for (const auto& [id, request] : policy.requests()) {
    lag = std::max(lag, request->mirror_lag());
    num_unprotected += request->phase() == Phase::kDecoding && !request->is_protected();
    num_waiting += request->phase() == Phase::kQueued || request->phase() == Phase::kWaiting;
  }
  running_.set(static_cast<double>(policy.requests().size() - num_waiting));
  waiting_.set(num_waiting);
  queued_.set(num_queued);
  mirror_lag_.set(lag);
  unprotected_.set(num_unprotected);
  bad_pairs_.set(static_cast<double>(policy.num_bad_pairs()));
  uint32_t num_open = 0, num_credits = 0;
  for (const auto& [node, link] : policy.links()) {
    if (link.state != role::LinkState::kOpen) continue;
    ++num_open;
    num_credits += link.beat.credits - std::min(link.beat.credits, link.num_prefills);
  }
  open_nodes_.set(num_open);
  credits_.set(num_credits);
}

}  // namespace tandem::gateway
