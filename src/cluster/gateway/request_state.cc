#include "cluster/gateway/request_state.h"

#include <algorithm>
#include <utility>

namespace tandem::gateway {
namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

Status check_at_most(const char* name, uint64_t value, uint64_t most) {
  if (value <= most) return Done{};
  return invalid(std::string(name) + " is " + std::to_string(value) + ", at most " + std::to_string(most) +
                 " is allowed");
}

}  // namespace

Status check_request(const sched::Request& request, const engine::GeneratorLimits& limits) {
  const auto is_bad = [&](TokenId token) { return token < 0 || static_cast<uint32_t>(token) >= limits.vocab_size; };
  if (const auto bad = std::ranges::find_if(request.prompt, is_bad); bad != request.prompt.end()) {
    return invalid("token id " + std::to_string(*bad) + " is outside the vocabulary of " +
                   std::to_string(limits.vocab_size));
  }
  if (request.prompt_logprobs >= 0) {
    return invalid("log-probabilities of the prompt (prompt_logprobs, or echo with logprobs or without output) are not"
                   " to be had from a cluster: ask a server of one process");
  }
  if (request.pooling != sched::Pooling::kNone) {
    return invalid("embeddings are not to be had from a cluster: ask a server of one process");
  }
  if (request.make_stop_rule && request.stop_strings.empty()) {
    return invalid("a stop rule without its texts cannot go to another process");
  }
  TRY(check_at_most("n", request.num_choices, limits.max_choices));
  const int32_t num_logprobs = std::max(request.sampling.num_logprobs, 0);
  return check_at_most("logprobs", static_cast<uint64_t>(num_logprobs), limits.max_logprobs);
}

handoff::RequestState state_of(sched::Request request, const std::string& model, uint32_t max_model_len) {
  handoff::RequestState state;
  state.model = model;
  const auto num_prompt = static_cast<uint32_t>(request.prompt.size());
  state.max_tokens = std::min(request.max_tokens, max_model_len - num_prompt);
  state.prompt = std::move(request.prompt);
  state.sampling = std::move(request.sampling);
  state.min_tokens = request.min_tokens;
  state.ignore_eos = request.ignore_eos;
  state.stop_token_ids = std::move(request.stop_token_ids);
  state.stop_strings = std::move(request.stop_strings);
  state.shows_special = request.shows_special;
  state.cache_salt = std::move(request.cache_salt);
  state.choices.resize(request.num_choices);
  return state;
}

}  // namespace tandem::gateway
