#include "serve/sched/admission_policy.h"

#include <algorithm>

namespace tandem::sched {
namespace {

uint32_t clamp_u32(uint64_t value) { return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX)); }

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

AdmissionPolicy::AdmissionPolicy(const SchedulerConfig& config) : config_(config) {
  const uint64_t shared_blocks = config.num_blocks - std::min(config.num_private_blocks, config.num_blocks);
  max_prompt_tokens_ = clamp_u32(shared_blocks * config.block_size);
  const uint64_t pool_tokens = static_cast<uint64_t>(config.num_blocks) * config.block_size;
  max_sequence_tokens_ = std::min(config.max_model_len, clamp_u32(pool_tokens + 1));
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

Status AdmissionPolicy::check_load(const Request& request, const QueueView& view, int64_t now_ns) const {
  if (config_.max_queue_length > 0 && view.num_queued >= config_.max_queue_length) {
    return Error{ErrorCode::kUnavailable, "the queue is full: " + std::to_string(view.num_queued) + " requests wait"};
  }
  // One request may always wait, else a prompt longer than the limit could never come in.
  if (config_.max_queued_tokens > 0 && view.num_queued > 0 &&
      view.queued_tokens + request.prompt.size() > config_.max_queued_tokens) {
    return Error{ErrorCode::kUnavailable,
                 "the queue is full: " + std::to_string(view.queued_tokens) + " prompt tokens wait"};
  }
  if (config_.max_queued_per_tenant > 0 && view.tenant_queued >= config_.max_queued_per_tenant) {
    return Error{ErrorCode::kExhausted,
                 "too many requests of this key wait: " + std::to_string(view.tenant_queued)};
  }
  if (request.deadline_ns == 0) return Done{};
  // The first token is what can be promised; how many follow is not known.
  const auto tokens = static_cast<double>(view.queued_tokens + request.prompt.size());
  const double needed_s = tokens * view.seconds_per_prefill_token + view.step_seconds;
  const double left_s = static_cast<double>(request.deadline_ns - now_ns) * 1e-9;
  if (left_s <= 0 || needed_s > left_s) {
    return Error{ErrorCode::kExhausted, "the deadline cannot be met: the first token is " + std::to_string(needed_s) +
                                            " s away, " + std::to_string(std::max(left_s, 0.0)) + " s are left"};
  }
  return Done{};
}

}  // namespace tandem::sched
