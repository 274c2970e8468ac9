#pragma once
// Sequence: one choice of one request on its way through the engine. Sequences live in their RequestState, which the
// Scheduler owns; engine thread.
//
//   kHeld -> kWaiting -> kPrefill -> kDecode -> kFinished
//              ^------------+-----------+   preempted: blocks go, tokens stay

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/sampling_params.h"
#include "serve/kv/block_table.h"
#include "serve/kv/prefix_index.h"
#include "serve/sched/batch.h"
#include "serve/sched/end_rule.h"
#include "serve/sched/request.h"
#include "serve/sched/stop_rule.h"
#include "serve/sched/token_mask.h"

namespace tandem::sched {

enum class Phase : uint8_t {
  kHeld,      // a choice that waits until choice 0 has computed the prompt
  kWaiting,   // has no blocks
  kPrefill,   // has all blocks of its known tokens, not all of them computed
  kDecode,    // only the newest token is not computed
  kFinished,
};

struct RequestState;

// What planning a step may change; saved and restored as a whole.
struct Progress {
  Phase phase = Phase::kWaiting;
  bool is_at_front = false;   // of the waiting line: preempted, or ready to fork
  uint32_t num_computed = 0;  // positions with KV
  kv::BlockTable table;
  uint32_t num_published = 0;  // leading blocks that are in the prefix index, or equal to one there
  kv::NodeId published_node = kv::kRootNode;
};

struct Sequence {
  SequenceId id{};
  RequestState* request = nullptr;  // owns this
  uint32_t choice = 0;
  int64_t line_key_ns = 0;  // virtual arrival: the order of waiting
  std::vector<TokenId> tokens;  // prompt, then output
  SamplingParams sampling;      // this choice's; its banned list is up to date
  std::unique_ptr<StopRule> stop_rule;
  std::unique_ptr<TokenMask> mask;  // null: no grammar. Has seen every output token
  Progress progress;

  uint32_t num_tokens() const { return static_cast<uint32_t>(tokens.size()); }
};

struct RequestState {
  RequestId id{};
  Request request;
  uint64_t arrival_index = 0;
  int64_t arrival_ns = 0;
  EndRule end;  // its max_tokens: max_model_len and pool size taken into account
  std::vector<std::unique_ptr<Sequence>> choices;
  uint32_t num_open = 0;  // choices that have not finished
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<double> pooled;  // see ItemOutcome
  bool has_prompt = false;  // choice 0 computed it, and its logprobs are out
  uint32_t num_cached_tokens = 0;
  int64_t scheduled_ns = 0;
};

// Who keeps its place when blocks run out: lower goes first.
struct RankOrder {
  bool operator()(const Sequence* a, const Sequence* b) const {
    const RequestState& ra = *a->request;
    const RequestState& rb = *b->request;
    if (ra.request.priority != rb.request.priority) return ra.request.priority < rb.request.priority;
    if (ra.arrival_index != rb.arrival_index) return ra.arrival_index < rb.arrival_index;
    return a->choice < b->choice;
  }
};

const char* name_of(Phase phase);

}  // namespace tandem::sched
