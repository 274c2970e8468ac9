#pragma once
// What a node's engine knows of a request: the tokens and the KV table of each choice, and how far they are computed.

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cluster/role/node_actions.h"
#include "serve/sched/batch.h"
#include "serve/sched/end_rule.h"
#include "serve/sched/grammar.h"
#include "serve/sched/token_mask.h"

namespace tandem::node {

struct EngineChoice {
  std::vector<TokenId> tokens;        // prompt, then what is emitted
  uint32_t num_prompt = 0;
  std::vector<kv::BlockId> blocks;    // the whole table
  uint32_t num_computed = 0;          // positions with KV
  SamplingParams sampling;            // of this choice; `banned` as the next token needs it
  bool is_finished = false;
  std::unique_ptr<sched::StopRule> stop_rule;  // has seen every emitted token
  std::unique_ptr<sched::TokenMask> mask;      // null: no grammar; has taken in every emitted token

  bool is_mask_ready() const { return mask == nullptr || mask->is_ready(); }
  uint32_t num_emitted() const { return static_cast<uint32_t>(tokens.size()) - num_prompt; }
};

// Who goes first, in the order of a single process: requests whose answer has begun, as sequences that were preempted
// there; then by virtual arrival, so that short and urgent ones overtake and nothing starves.
struct PrefillRank {
  bool is_new = true;
  int64_t line_key_ns = 0;
  uint64_t arrival = 0;
  auto operator<=>(const PrefillRank&) const = default;
};

// What the client wants of the prompt itself, as far as it is computed: none of it where the request goes on after its
// first token.
struct PromptReading {
  int32_t num_logprobs = -1;  // -1: no scores
  sched::Pooling pooling = sched::Pooling::kNone;
  std::vector<handoff::PromptScore> scores;
  std::vector<double> pooled;
};
PromptReading prompt_reading_of(const handoff::RequestState& state);
// Asks for what is missing, in an item of choice 0; takes what the item brought.
void ask_for(const PromptReading& reading, sched::BatchItem& item);
void take_from(sched::ItemOutcome& outcome, PromptReading& reading);
// Moves it to choice 0's first token.
void give_to(handoff::TokenEntry& entry, size_t num_prompt, PromptReading& reading);

struct PrefillJob {
  handoff::Attempt attempt = 0;
  PrefillRank rank;
  uint32_t num_cached = 0;  // tokens of the prompt whose KV was there before
  int64_t began_at = 0;     // of its first step, the engine's clock; 0: it waits
  handoff::HandoffShape shape;
  sched::EndRule end;
  std::vector<EngineChoice> choices;
  PromptReading reading;
  std::vector<std::optional<handoff::TokenEntry>> first;  // sampled, by choice
  std::vector<uint8_t> is_reported;                       // by block number of the shape
};

struct DecodeJob {
  sched::EndRule end;
  std::vector<EngineChoice> choices;
};

// Makes a mask for each choice of one request.
using ChoiceMasks = std::function<std::unique_ptr<sched::TokenMask>()>;
// For a request that has a grammar.
using MaskMaker = std::function<ChoiceMasks(const sched::Grammar& grammar)>;

// The masks of its choices; empty: it has no grammar. Where nobody makes masks, they fail: to answer without the
// grammar would be worse.
ChoiceMasks masks_of(const handoff::RequestState& state, const MaskMaker& make_masks);

sched::EndRule end_rule_of(const handoff::RequestState& state, const std::vector<TokenId>& eos_ids);

// What a choice's tokens are held against.
struct ChoiceRules {
  std::unique_ptr<sched::StopRule> stop;
  std::unique_ptr<sched::TokenMask> mask;
};

// One choice, ready for the token after those that `state` has.
EngineChoice make_choice(const handoff::RequestState& state, const role::KvTables& tables, uint32_t choice,
                         const sched::EndRule& end, ChoiceRules rules);

// Takes the token in, which the choice's mask has: the choice may be finished by it.
handoff::Finish accept_token(EngineChoice& choice, const sched::EndRule& end, TokenId token);

// Numbers of the shape's blocks that were not reported and are computed once choice c has `num_computed[c]` positions.
std::vector<uint32_t> unreported_blocks(const PrefillJob& job, std::span<const uint32_t> num_computed);

}  // namespace tandem::node
