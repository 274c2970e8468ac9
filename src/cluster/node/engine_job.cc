#include "cluster/node/engine_job.h"

#include <algorithm>

namespace tandem::node {

using handoff::Finish;

static_assert(static_cast<int>(sched::Pooling::kLast) == static_cast<int>(handoff::Pooling::kLast));
static_assert(static_cast<int>(sched::Pooling::kMean) == static_cast<int>(handoff::Pooling::kMean));
namespace {

class NoMask final : public sched::TokenMask {
 public:
  Result<std::span<const uint32_t>> allowed() override { return error(); }
  Status commit(TokenId) override { return error(); }
  bool is_over() const override { return false; }

 private:
  static Error error() { return {ErrorCode::kInvalidArgument, "this node cannot hold answers to a grammar"}; }
};

sched::GrammarKind kind_of(handoff::GrammarKind kind) {
  switch (kind) {
    case handoff::GrammarKind::kRegex:
      return sched::GrammarKind::kRegex;
    case handoff::GrammarKind::kLark:
      return sched::GrammarKind::kLark;
    case handoff::GrammarKind::kChoice:
      return sched::GrammarKind::kChoice;
    case handoff::GrammarKind::kNone:
    case handoff::GrammarKind::kJsonSchema:
      break;
  }
  return sched::GrammarKind::kJsonSchema;
}

}  // namespace

ChoiceMasks masks_of(const handoff::RequestState& state, const MaskMaker& make_masks) {
  if (state.grammar_kind == handoff::GrammarKind::kNone) return {};
  if (!make_masks) return [] { return std::make_unique<NoMask>(); };
  return make_masks({kind_of(state.grammar_kind), state.grammar_source});
}

sched::EndRule end_rule_of(const handoff::RequestState& state, const std::vector<TokenId>& eos_ids) {
  const bool ignores_eos = state.ignore_eos && state.grammar_kind == handoff::GrammarKind::kNone;
  return {sched::sorted_stop_ids(state.stop_token_ids, eos_ids, ignores_eos), state.sampling.banned, state.min_tokens,
          state.max_tokens};
}

EngineChoice make_choice(const handoff::RequestState& state, const role::KvTables& tables, uint32_t index,
                         const sched::EndRule& end, ChoiceRules rules) {
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
  choice.sampling.banned = end.banned_after(choice.num_emitted());
  choice.stop_rule = std::move(rules.stop);
  choice.mask = std::move(rules.mask);
  for (uint32_t i = 0; choice.stop_rule && i < emitted.tokens.size(); ++i) {
    choice.stop_rule->push(emitted.tokens[i], i + 1 >= end.min_tokens);
  }
  for (uint32_t i = 0; choice.mask && i < emitted.tokens.size(); ++i) {
    // A mask that has failed says so again when it is asked what may come.
    static_cast<void>(choice.mask->commit(emitted.tokens[i]));
  }
  return choice;
}

PromptReading prompt_reading_of(const handoff::RequestState& state) {
  PromptReading reading;
  if (state.choices.empty() || !state.choices[0].tokens.empty()) return reading;
  reading.num_logprobs = state.prompt_logprobs;
  reading.pooling = static_cast<sched::Pooling>(state.pooling);
  return reading;
}

void ask_for(const PromptReading& reading, sched::BatchItem& item) {
  item.prompt_logprobs = reading.num_logprobs;
  item.pooling = reading.pooling;
  item.pooled = reading.pooled;
}

void take_from(sched::ItemOutcome& outcome, PromptReading& reading) {
  for (sched::TokenLogprob& score : outcome.prompt_logprobs) {
    reading.scores.push_back({score.token, score.logprob, score.rank, std::move(score.top)});
  }
  if (reading.pooling != sched::Pooling::kNone) reading.pooled = std::move(outcome.pooled);
}

void give_to(handoff::TokenEntry& entry, size_t num_prompt, PromptReading& reading) {
  entry.prompt_scores = std::move(reading.scores);
  entry.embedding = sched::embedding_of(reading.pooling, num_prompt, reading.pooled);
}

Finish accept_token(EngineChoice& choice, const sched::EndRule& end, TokenId token) {
  choice.tokens.push_back(token);
  const auto finish = end.finish_of(token, choice.num_emitted(), choice.stop_rule.get(), choice.mask.get());
  choice.is_finished = finish.has_value();
  if (finish && finish->by_stop_rule) return Finish::kStopRule;
  const bool is_complete = finish && finish->reason == sched::FinishReason::kStop && !finish->stop_token;
  if (is_complete) return Finish::kComplete;
  if (finish) return finish->reason == sched::FinishReason::kStop ? Finish::kStop : Finish::kLength;
  choice.sampling.banned = end.banned_after(choice.num_emitted());
  return Finish::kNone;
}

std::vector<uint32_t> unreported_blocks(const PrefillJob& job, std::span<const uint32_t> num_computed) {
  std::vector<uint32_t> ready;
  const uint32_t block_size = job.shape.block_size;
  for (uint32_t number = 0; number < job.is_reported.size(); ++number) {
    if (job.is_reported[number] != 0) continue;
    const handoff::BlockPlace place = handoff::place_of(job.shape, number);
    const uint32_t index = place.index + (place.is_shared ? 0 : job.shape.num_shared());
    const uint32_t end = index * block_size + place.num_filled;
    // Shared blocks are computed by the first choice that goes on.
    const auto has_computed = [&](uint32_t c) { return !job.choices[c].is_finished && num_computed[c] >= end; };
    bool is_ready = !place.is_shared && has_computed(place.choice);
    for (uint32_t c = 0; place.is_shared && c < job.choices.size(); ++c) is_ready |= has_computed(c);
    if (is_ready) ready.push_back(number);
  }
  return ready;
}

}  // namespace tandem::node
