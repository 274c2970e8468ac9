#include "cluster/gateway/request_state.h"

#include <algorithm>
#include <utility>

namespace tandem::gateway {
namespace {

// They go in one message, with some bytes each, and other requests' tokens wait behind it.
constexpr uint64_t kMaxScores = 500'000;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

Status check_at_most(const char* name, uint64_t value, uint64_t most) {
  if (value <= most) return Done{};
  return invalid(std::string(name) + " is " + std::to_string(value) + ", at most " + std::to_string(most) +
                 " is allowed");
}

handoff::GrammarKind kind_of(const sched::Grammar& grammar) {
  switch (grammar.kind) {
    case sched::GrammarKind::kJsonSchema:
      return handoff::GrammarKind::kJsonSchema;
    case sched::GrammarKind::kRegex:
      return handoff::GrammarKind::kRegex;
    case sched::GrammarKind::kLark:
      return handoff::GrammarKind::kLark;
    case sched::GrammarKind::kChoice:
      return handoff::GrammarKind::kChoice;
  }
  return handoff::GrammarKind::kNone;
}

}  // namespace

Status check_request(const sched::Request& request, const engine::GeneratorLimits& limits) {
  const auto is_bad = [&](TokenId token) { return token < 0 || static_cast<uint32_t>(token) >= limits.vocab_size; };
  if (const auto bad = std::ranges::find_if(request.prompt, is_bad); bad != request.prompt.end()) {
    return invalid("token id " + std::to_string(*bad) + " is outside the vocabulary of " +
                   std::to_string(limits.vocab_size));
  }
  const auto scores_each = static_cast<uint64_t>(int64_t{request.prompt_logprobs} + 1);
  const uint64_t num_scores = request.prompt.size() * scores_each;
  if (num_scores > kMaxScores) {
    return invalid("the prompt's log-probabilities are " + std::to_string(num_scores) + " values, of which a cluster "
                   "gives at most " + std::to_string(kMaxScores) + " a request");
  }
  if (request.make_stop_rule && request.stop_strings.empty()) {
    return invalid("a stop rule without its texts cannot go to another process");
  }
  if (request.make_token_mask && !request.grammar) {
    return invalid("a mask without its grammar cannot go to another process");
  }
  TRY(check_at_most("n", request.num_choices, limits.max_choices));
  const int32_t num_logprobs = std::max({request.sampling.num_logprobs, request.prompt_logprobs, 0});
  return check_at_most("logprobs", static_cast<uint64_t>(num_logprobs), limits.max_logprobs);
}

handoff::RequestState state_of(sched::Request request, const std::string& model, uint32_t max_model_len) {
  handoff::RequestState state;
  state.model = model;
  const auto num_prompt = static_cast<uint32_t>(request.prompt.size());
  // A node gives what it reads of a prompt with the first token; who wants none is not shown it.
  state.max_tokens = std::max(std::min(request.max_tokens, max_model_len - num_prompt), 1u);
  state.prompt = std::move(request.prompt);
  state.sampling = std::move(request.sampling);
  state.min_tokens = request.min_tokens;
  state.ignore_eos = request.ignore_eos;
  state.stop_token_ids = std::move(request.stop_token_ids);
  state.stop_strings = std::move(request.stop_strings);
  state.shows_special = request.shows_special;
  if (request.grammar) {
    state.grammar_kind = kind_of(*request.grammar);
    state.grammar_source = std::move(request.grammar->source);
  }
  state.cache_salt = std::move(request.cache_salt);
  state.prompt_logprobs = request.prompt_logprobs;
  state.pooling = static_cast<handoff::Pooling>(request.pooling);
  state.choices.resize(request.num_choices);
  return state;
}

}  // namespace tandem::gateway
