#include "serve/sched/admission_policy.h"

#include <algorithm>

namespace tandem::sched {
namespace {

// A tenant may hold so many times what is still free of the queue. So one alone gets most of it, many get parts by
// weight, and there is always room for one that comes new. Dynamic thresholds: Choudhury and Hahne, 1998.
constexpr double kShareOfFree = 4;

// What is promised to be in time is predicted with some room: predictions are means.
constexpr double kCaution = 1.1;

uint32_t clamp_u32(uint64_t value) { return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX)); }

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

AdmissionPolicy::AdmissionPolicy(const SchedulerConfig& config) : config_(config) {
  const uint64_t shared_blocks = config.num_blocks - std::min(config.num_private_blocks, config.num_blocks);
  max_prompt_tokens_ = clamp_u32(shared_blocks * config.block_size);
  const uint64_t pool_tokens = static_cast<uint64_t>(config.num_blocks) * config.block_size;
  max_sequence_tokens_ = std::min(config.max_model_len, clamp_u32(pool_tokens + 1));
  double all = 0;
  for (const auto& [tenant, weight] : config.tenant_weights) all += weight > 0 ? weight : 1;
  if (all > 0) mean_weight_ = all / static_cast<double>(config.tenant_weights.size());
}

uint32_t AdmissionPolicy::max_output(const Request& request) const {
  const auto num_prompt = static_cast<uint32_t>(request.prompt.size());
  return std::min(request.max_tokens, max_sequence_tokens_ - num_prompt);
}

Status AdmissionPolicy::check_fits(const Request& request) const {
  const uint64_t num_prompt = request.prompt.size();
  if (num_prompt == 0) return invalid("the prompt has no tokens");
  if (request.num_choices == 0) return invalid("n must be at least 1");
  const bool is_pooled = request.pooling != Pooling::kNone;
  if (request.max_tokens == 0 && request.prompt_logprobs < 0 && !is_pooled) {
    return invalid("max_tokens 0 is only for scoring a prompt (prompt_logprobs) and for embeddings");
  }
  if (is_pooled && (request.max_tokens > 0 || request.num_choices > 1)) {
    return invalid("an embedding has no output: max_tokens must be 0 and n 1");
  }
  const uint64_t least = num_prompt + (request.max_tokens > 0 ? 1 : 0);
  if (least > config_.max_model_len) {
    return invalid("the prompt has " + std::to_string(num_prompt) + " tokens, the model takes at most " +
                   std::to_string(config_.max_model_len) + " of prompt and output");
  }
  if (num_prompt > max_prompt_tokens_) {
    return invalid("the prompt has " + std::to_string(num_prompt) + " tokens, the KV pool holds prompts of at most " +
                   std::to_string(max_prompt_tokens_));
  }
  return Done{};
}

double AdmissionPolicy::weight_of(const std::string& tenant) const {
  const auto found = config_.tenant_weights.find(tenant);
  return (found == config_.tenant_weights.end() || found->second <= 0 ? 1 : found->second) / mean_weight_;
}

// Of the share as of the limits. A list of more prompts than this could never be taken.
uint32_t AdmissionPolicy::max_waiting() const {
  uint32_t most = 0;
  const auto bound = [&most](uint32_t limit) {
    if (limit > 0) most = most == 0 ? limit : std::min(most, limit);
  };
  bound(config_.max_queue_length);
  bound(config_.max_queued_per_tenant);
  const uint32_t length = config_.max_queue_length;
  if (length > 0) bound(std::max(static_cast<uint32_t>(least_share_of(length)), 1u));
  return most;
}

uint64_t AdmissionPolicy::max_waiting_tokens() const {
  return static_cast<uint64_t>(least_share_of(static_cast<double>(config_.max_queued_tokens)));
}

// What the tenant with the least weight may hold of a queue that is empty but for its own.
double AdmissionPolicy::least_share_of(double limit) const {
  double least = limit;
  if (config_.tenant_weights.size() < 2) return least;
  for (const auto& [tenant, weight] : config_.tenant_weights) {
    const double part = kShareOfFree * weight_of(tenant);
    least = std::min(least, part / (1 + part) * limit);
  }
  return least;
}

// What waits leaves as fast as prompts are computed or as fast as seats come free, whichever is slower. A tenant waits
// for its own only, at its share of that rate, if that is less.
double AdmissionPolicy::predicted_wait_s(const QueueView& view) {
  auto tokens = static_cast<double>(view.queued_tokens);
  double requests = view.num_queued;
  if (view.tenant_share > 0 && view.tenant_share < 1) {
    tokens = std::min(tokens, static_cast<double>(view.tenant_tokens) / view.tenant_share);
    requests = std::min(requests, view.tenant_queued / view.tenant_share);
  }
  return std::max(tokens * view.seconds_per_prefill_token, requests * view.seconds_per_start);
}

Status AdmissionPolicy::check_room(const QueueView& view, uint64_t num_prompt_tokens,
                                   const std::string& tenant) const {
  const double tenant_weight = weight_of(tenant);
  const uint64_t num_max = config_.max_queue_length, tokens_max = config_.max_queued_tokens;
  const auto is_over_share = [&](uint64_t held, uint64_t asked, uint64_t all, uint64_t limit) {
    if (limit == 0 || held == 0 || config_.tenant_weights.size() < 2) return false;
    const double free = all < limit ? static_cast<double>(limit - all) : 0;
    return static_cast<double>(held + asked) > kShareOfFree * tenant_weight * free;
  };
  if (is_over_share(view.tenant_queued, 1, view.num_queued, num_max) ||
      is_over_share(view.tenant_tokens, num_prompt_tokens, view.queued_tokens, tokens_max)) {
    return Error{ErrorCode::kExhausted, "this key has its share of the queue: " + std::to_string(view.tenant_queued) +
                                            " of its requests wait"};
  }
  if (num_max > 0 && view.num_queued >= num_max) {
    return Error{ErrorCode::kUnavailable, "the queue is full: " + std::to_string(view.num_queued) + " requests wait"};
  }
  // One request may always wait, else a prompt longer than the limit could never come in.
  if (tokens_max > 0 && view.num_queued > 0 && view.queued_tokens + num_prompt_tokens > tokens_max) {
    return Error{ErrorCode::kUnavailable,
                 "the queue is full: " + std::to_string(view.queued_tokens) + " prompt tokens wait"};
  }
  if (config_.max_queued_per_tenant > 0 && view.tenant_queued >= config_.max_queued_per_tenant) {
    return Error{ErrorCode::kExhausted,
                 "too many requests of this key wait: " + std::to_string(view.tenant_queued)};
  }
  const double wait_s = predicted_wait_s(view);
  if (config_.max_queue_s > 0 && view.num_queued > 0 && wait_s > config_.max_queue_s) {
    const bool is_own_fault = view.tenant_share < 1 && view.tenant_queued > 0;
    return Error{is_own_fault ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
                 "the queue is full: what waits takes " + std::to_string(wait_s) + " s to begin"};
  }
  return Done{};
}

Status AdmissionPolicy::check_load(const Request& request, const QueueView& view, int64_t now_ns) const {
  TRY(check_room(view, request.prompt.size(), request.tenant));
  if (request.deadline_ns == 0) return Done{};
  // How much a model says is not known: as much as it did lately, or what the request allows.
  const double output = std::min<double>(request.max_tokens, view.mean_output_tokens);
  const double prefill_s = static_cast<double>(request.prompt.size()) * view.seconds_per_prefill_token;
  const double needed_s = kCaution * (predicted_wait_s(view) + prefill_s + (1 + output) * view.step_seconds);
  const double left_s = static_cast<double>(request.deadline_ns - now_ns) * 1e-9;
  if (left_s <= 0 || (needed_s > left_s && !view.is_idle)) {
    return Error{ErrorCode::kExhausted, "the deadline cannot be met: the answer takes " + std::to_string(needed_s) +
                                            " s, " + std::to_string(std::max(left_s, 0.0)) + " s are left"};
  }
  return Done{};
}

}  // namespace tandem::sched
