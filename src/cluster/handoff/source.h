#pragma once
// Source: one request's prefill here, from Prefill to CommitAck. Pushes each part as it is computed, samples nothing
// itself, commits when all is pushed. Afterwards the node holds the KV (holder.h).
//
//   Pushing -all pushed and sampled-> AwaitAck -CommitAck-> done;  either -connection lost, Stale, deadline-> failed

#include <cstdint>
#include <vector>

#include "cluster/handoff/actions.h"
#include "cluster/handoff/timing.h"

namespace tandem::handoff {

class Source {
 public:
  enum class State : uint8_t { kPushing, kAwaitAck, kDone, kFailed };

  // `self`: this process. A hand-off to itself moves nothing: parts count as pushed, the node commits locally.
  Source(Prefill prefill, const NodeRef& self, uint32_t block_size, uint32_t num_layer_groups, Nanos now);

  void begin(Actions& out) { out.push_back(BeginPrefill{prefill_.state}); }

  // The engine's news.
  void on_computed(uint32_t block, uint32_t layer_group, Actions& out);
  // `estimated_transfer`: of all parts.
  void on_sampled(std::vector<TokenEntry> first, Nanos estimated_transfer, const Timing& timing, Nanos now,
                  Actions& out);
  // The peer's.
  void on_commit_ack(Attempt attempt);
  void on_stale(const Stale& stale, Actions& out);
  void on_connection_lost(const NodeRef& peer, Actions& out);
  void on_tick(Nanos now, Actions& out);

  State state() const { return state_; }
  bool is_running() const { return state_ == State::kPushing || state_ == State::kAwaitAck; }
  bool is_local() const { return prefill_.target == self_; }
  Attempt attempt() const { return prefill_.attempt; }
  const RequestId& request() const { return prefill_.request; }
  uint64_t kv_token() const { return prefill_.kv_token; }
  const NodeRef& target() const { return prefill_.target; }
  const HandoffShape& shape() const { return shape_; }
  const RequestState& request_state() const { return prefill_.state; }
  int32_t priority() const { return static_cast<int32_t>(prefill_.priority); }
  const std::vector<TokenEntry>& first() const { return first_; }  // once sampled
  Commit make_commit() const;

 private:
  void fail(Actions& out);

  Prefill prefill_;
  NodeRef self_;
  HandoffShape shape_;
  PartSet pushed_;
  std::vector<TokenEntry> first_;
  State state_ = State::kPushing;
  Nanos ack_deadline_ = INT64_MAX;
};

}  // namespace tandem::handoff
