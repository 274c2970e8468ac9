#pragma once
// Target: one request's reservation here, from Reserve to its last token. It alone decides when decode may start: all
// parts arrived, verified, and the commit of the current attempt.
//
//   Filling -bitmap full and Commit-> Decoding -all choices finished-> Ended
//   Reserve(a' > a): Filling is bound to a' and keeps what arrived; Decoding goes on under a' (Running)

#include <cstdint>
#include <vector>

#include "cluster/handoff/actions.h"
#include "cluster/handoff/mirror_sender.h"

namespace tandem::handoff {

class Target {
 public:
  enum class State : uint8_t { kFilling, kDecoding, kEnded };
  enum class PushResult : uint8_t { kTaken, kRepeated, kStale };

  // Only Reserve creates a target. `have`: parts that the prefix cache has supplied.
  Target(const Reserve& reserve, const NodeRef& self, uint64_t landing, uint64_t kv_token, PartSet have, Actions& out);

  // A later Reserve of the same request. Nothing for an attempt that is not newer. The blocks the node holds for the
  // shape must be those of shape() afterwards.
  void on_reserve(const Reserve& reserve, uint64_t landing, Actions& out);
  // `checksum`: over the bytes as they arrived.
  PushResult on_push(const Push& push, uint64_t checksum, const NodeRef& from, Actions& out);
  void on_commit(const Commit& commit, const NodeRef& from, Actions& out);
  // The source is this node: its job's blocks are this target's, already complete.
  void on_local_commit(const Commit& commit, Actions& out);

  // The engine's tokens of one step, in order per choice. Appends what the gateway gets to `batch`.
  void on_tokens(const std::vector<TokenEntry>& tokens, std::vector<TokenEntry>& batch, Actions& out);

  void on_set_mirror(const SetMirror& message, Actions& out);
  void on_mirror_ack(const MirrorAck& ack, const NodeRef& from, Actions& out);
  void on_mirror_stop(const MirrorStop& stop, const NodeRef& from);
  // The holder knows a newer attempt: this decode is superseded and its tokens go nowhere.
  void on_stale(const Stale& stale, const NodeRef& from, Actions& out);
  void on_connection_lost(const NodeRef& peer);

  State state() const { return state_; }
  Attempt attempt() const { return attempt_; }
  const RequestId& request() const { return request_; }
  const HandoffShape& shape() const { return shape_; }
  const PartSet& received() const { return received_; }
  const NodeRef& source() const { return source_; }
  uint64_t landing() const { return landing_; }
  uint64_t kv_token() const { return kv_token_; }  // one for all attempts of the reservation
  const RequestState& request_state() const { return request_state_; }  // once decoding
  std::vector<uint32_t> written() const;  // positions with KV, by choice
  bool is_mirrored() const { return mirror_.is_on(); }
  const NodeRef& holder() const { return mirror_.holder(); }
  uint32_t mirror_lag() const { return mirror_.lag(wanted_at_holder()); }

  // For tests of the harness only: lets decode start without the gate, to see that it is caught.
  void test_only_open_gate() { is_gate_open_ = true; }

 private:
  void answer_reserve(Actions& out);
  void try_begin(Actions& out);
  void take(const TokenEntry& entry);
  std::vector<uint32_t> wanted_at_holder() const;  // positions, by choice; none of finished ones
  void poll_mirror(Actions& out);

  RequestId request_;
  NodeRef self_, source_;
  Attempt attempt_ = 0;
  uint64_t landing_ = 0, kv_token_ = 0;
  HandoffShape shape_;
  PartSet received_;
  State state_ = State::kFilling;
  bool has_commit_ = false;
  bool is_gate_open_ = false;
  Commit commit_;
  RequestState request_state_;
  std::vector<std::vector<TokenEntry>> told_;  // by choice: what the gateway was told, to be told again (Running)
  MirrorSender mirror_;
};

}  // namespace tandem::handoff
