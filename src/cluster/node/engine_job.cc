#include "cluster/node/engine_job.h"

#include <algorithm>

namespace tandem::node {

using handoff::Finish;

namespace {

// Until min_tokens are out, what would end the choice cannot be sampled.
void set_banned(EngineChoice& choice, const EndRule& end) {
  choice.sampling.banned = end.banned;
  if (choice.num_emitted() >= end.min_tokens) return;
  choice.sampling.banned.insert(choice.sampling.banned.end(), end.stop_ids.begin(), end.stop_ids.end());
}

}  // namespace

EndRule end_rule_of(const handoff::RequestState& state, const std::vector<TokenId>& eos_ids) {
  EndRule end{state.stop_token_ids, state.sampling.banned, state.min_tokens, state.max_tokens};
  if (!state.ignore_eos) end.stop_ids.insert(end.stop_ids.end(), eos_ids.begin(), eos_ids.end());
  std::ranges::sort(end.stop_ids);
  const auto repeated = std::ranges::unique(end.stop_ids);
  end.stop_ids.erase(repeated.begin(), repeated.end());
  return end;
}

EngineChoice make_choice(const handoff::RequestState& state, const role::KvTables& tables, uint32_t index,
                         const EndRule& end, std::unique_ptr<sched::StopRule> stop_rule) {
  const handoff::ChoiceState& emitted = state.choices[index];
  EngineChoice choice;
  choice.tokens = state.prompt;
  choice.tokens.insert(choice.tokens.end(), emitted.tokens.begin(), emitted.tokens.end());
  choice.num_prompt = static_cast<uint32_t>(state.prompt.size());
  choice.is_finished = emitted.is_finished;
  if (!choice.is_finished) {
    choice.blocks = tables.shared;
    choice.blocks.insert(choice.blocks.end(), tables.own[index].begin(), tables.own[index].end());
  }
  choice.sampling = state.sampling;
  choice.sampling.choice = index;
  set_banned(choice, end);
  choice.stop_rule = std::move(stop_rule);
  for (uint32_t i = 0; choice.stop_rule && i < emitted.tokens.size(); ++i) {
    choice.stop_rule->push(emitted.tokens[i], i + 1 >= end.min_tokens);
  }
  return choice;
}

Finish accept_token(EngineChoice& choice, const EndRule& end, TokenId token) {
  choice.tokens.push_back(token);
  const bool may_stop = choice.num_emitted() >= end.min_tokens;
  // The rule sees every token, also one that stops by its id.
  const bool is_stop_string = choice.stop_rule && choice.stop_rule->push(token, may_stop);
  if (may_stop && (is_stop_string || std::ranges::binary_search(end.stop_ids, token))) {
    choice.is_finished = true;
    return Finish::kStop;
  }
  if (choice.num_emitted() >= end.max_tokens) {
    choice.is_finished = true;
    return Finish::kLength;
  }
  set_banned(choice, end);
  return Finish::kNone;
}

std::vector<uint32_t> newly_computed(PrefillJob& job) {
  std::vector<uint32_t> ready;
  const uint32_t block_size = job.shape.block_size;
  for (uint32_t number = 0; number < job.is_reported.size(); ++number) {
    if (job.is_reported[number] != 0) continue;
    const handoff::BlockPlace place = handoff::place_of(job.shape, number);
    const uint32_t index = place.index + (place.is_shared ? 0 : job.shape.num_shared());
    const uint32_t end = index * block_size + place.num_filled;
    // Shared blocks are computed by the first choice that goes on.
    const auto has_computed = [&](const EngineChoice& choice) {
      return !choice.is_finished && choice.num_computed >= end;
    };
    const bool is_ready = place.is_shared ? std::ranges::any_of(job.choices, has_computed)
                                          : has_computed(job.choices[place.choice]);
    if (!is_ready) continue;
    job.is_reported[number] = 1;
    ready.push_back(number);
  }
  return ready;
}

}  // namespace tandem::node
