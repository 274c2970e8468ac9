#pragma once
// GatewayRequest: one request at the gateway that owns it, the only issuer of its attempts and the only judge of its
// tokens.
//
//   Queued -Reserve-> Reserving -ReserveOk/Prefill-> Prefilling -first TokenBatch of the target-> Decoding -> Done
//   any -no pair of nodes-> Waiting

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "cluster/handoff/messages.h"
#include "cluster/handoff/timing.h"
#include "cluster/handoff/token_judge.h"

namespace tandem::handoff {

struct ToNode {
  std::string node;  // on its current session
  SessionMessage message;
};
struct Emit {  // to the client
  TokenEntry entry;
};
struct PairFailed {
  std::string source, target;
};
struct PairWorked {
  std::string source, target;
};
struct EndRequest {
  RequestId request;
  std::optional<ErrorCode> error;  // nothing: complete
  std::string message;
};
using GatewayAction = std::variant<ToNode, Emit, PairFailed, PairWorked, EndRequest>;
using GatewayActions = std::vector<GatewayAction>;

// What a request asks of the router.
struct PlacementQuery {
  RequestId request;
  bool is_first_attempt = true;  // no node was told to prefill yet: the source must have a credit
  HandoffShape shape;
  uint32_t final_tokens = 0;
  std::string keep_source;           // wanted, when it is still good; empty: any
  std::string keep_target;           // the same
  std::set<std::string> not_target;  // refused or gave no answer
  std::set<std::string> not_source;
};
struct Placed {
  NodeRef source, target;
  Nanos predicted_prefill = 0;
};

// Which nodes there are, as the gateway sees them. Answers from plain state; calls nobody.
class Placement {
 public:
  virtual ~Placement() = default;
  virtual std::optional<Placed> place(const PlacementQuery& query) const = 0;
  virtual std::optional<NodeRef> place_holder(const PlacementQuery& query) const = 0;
  virtual std::optional<NodeRef> open_node(const std::string& node) const = 0;  // with a current session
  virtual bool has_open_node(bool is_extended) const = 0;          // that knows such a request: handoff::is_extended
  virtual Nanos progressed_at(const std::string& node) const = 0;  // when its step counter last moved
};

class GatewayRequest {
 public:
  enum class Phase : uint8_t { kQueued, kReserving, kPrefilling, kDecoding, kWaiting, kDone };
  struct Context {
    const Placement& placement;
    const Timing& timing;
    Nanos now = 0;
    GatewayActions& out;
  };
  struct Options {
    bool is_mirrored = true;
    bool does_holder_adopt = true;
    uint32_t final_tokens = 0;     // predicted length of the longest choice
    Nanos deadline = INT64_MAX;    // the client's
    int32_t priority = 0;          // lower goes first
    std::string traceparent = {};  // goes to the nodes
  };

  // `state.choices` has an empty entry for each choice; the seed is set.
  GatewayRequest(RequestId id, RequestState state, const Options& options, Nanos now);

  // Starts or starts again when there is a pair; also runs the deadlines.
  void on_tick(const Context& context);
  // From the node's current session.
  void on_message(const std::string& node, const SessionMessage& message, const Context& context);
  void on_token(const std::string& node, const TokenEntry& entry, const Context& context);
  void on_mirror_progress(const std::string& node, const MirrorProgress& progress, const Context& context);
  // The session ended: suspicion, a stuck engine, a closed stream. All the node held of it is void. `is_broken`: the
  // stream ended by itself, as when the process dies. What had the job in that moment may have died of it.
  void on_session_closed(const std::string& node, bool is_broken, const Context& context);
  // What is known later of such a process. A request that processes died of, max_deaths of them, ends with an error.
  void on_process_lives(const NodeRef& process) { broken_with_.erase(process); }
  void on_process_died(const NodeRef& process);
  void cancel(const Context& context, ErrorCode reason, const char* message);
  // A planned change: the decode goes to `node`, by mirror first and then as the next attempt.
  void move_to(const NodeRef& node, const Context& context);
  // The same at once, wherever there is room: also for tests of false suspicion.
  void leave_target(const Context& context);

  Phase phase() const { return phase_; }
  const RequestId& id() const { return id_; }
  Attempt attempt() const { return attempt_; }
  const NodeRef& source() const { return source_; }
  const NodeRef& target() const { return target_; }
  const NodeRef& holder() const { return holder_; }
  uint32_t mirror_lag() const { return mirror_lag_; }  // tokens that the holder lacks, as the target said last
  bool is_moving() const { return move_to_.has_value(); }
  bool is_protected() const { return !holder_.id.empty(); }
  bool involves(const std::string& node) const;
  // The nodes that it involves; some more than once.
  template <class Visit>
  void for_each_node(const Visit& visit) const {
    for (const NodeRef* node : {&source_, &target_, &holder_}) {
      if (!node->id.empty()) visit(node->id);
    }
    for (const std::string& node : touched_) visit(node);
  }
  Nanos asked_at() const { return asked_at_; }
  // Where it stands among those that are queued: lower goes first.
  Nanos queue_rank(Nanos priority_step) const {
    return entered_at_ + std::clamp(options_.priority, -10000, 10000) * priority_step;
  }
  const TokenJudge& judge() const { return judge_; }
  uint64_t num_mismatches() const { return num_mismatches_; }
  uint64_t num_stale() const { return num_stale_; }     // tokens that were not of the current attempt
  const RequestState& state() const { return state_; }  // as it was asked for
  RequestState current_state() const;                   // with the tokens emitted so far

  // For tests of the harness only: rules left out.
  struct TestOnly {
    bool has_no_attempt_fence = false, has_no_new_attempt = false;
  };
  TestOnly test_only;

 private:
  void start(const Context& context, bool is_target_kept);
  void begin_attempt(const Placed& placed, const Context& context, bool is_new);
  void release_unused(const Context& context, Attempt upto);
  void end(const Context& context, std::optional<ErrorCode> error, std::string message);
  void wait(const Context& context);
  void queue_again(const Context& context);
  bool is_held(const Context& context);
  void send(const Context& context, const std::string& node, SessionMessage message);
  void send_prefill(const ReserveOk& ok, const Context& context);
  void on_reserve_no(const ReserveNo& no, const Context& context);
  void on_failed(const Failed& failed, const Context& context);
  void enter_decoding(const Context& context);
  void protect(const Context& context);
  PlacementQuery query() const;
  void check_deadlines(const Context& context);

  RequestId id_;
  RequestState state_;
  Options options_;
  TokenJudge judge_;
  Phase phase_ = Phase::kQueued;
  Attempt attempt_ = 0;
  uint32_t num_attempts_after_first_ = 0;
  NodeRef source_, target_, holder_;
  uint64_t kv_token_ = 0;  // of the reservation at target_
  const Nanos asked_at_;
  Nanos predicted_prefill_ = 0, entered_at_ = 0, retry_at_ = 0, waiting_since_ = 0, mirror_asked_at_ = 0;
  Nanos retry_pause_ = 0;
  uint32_t num_refused_ = 0;       // attempts that ended with no room anywhere
  bool was_prefilled_ = false;     // a node was told to
  std::set<std::string> touched_;  // may hold something of this request
  std::set<std::string> refused_;  // targets, until the next attempt
  bool never_fits_ = true;         // all of them said so
  std::set<std::string> avoided_source_;
  std::map<NodeRef, bool> broken_with_;  // processes whose streams broke while they had its job; true: they died
  Nanos held_until_ = 0;                 // Waiting: not given to another node before it is known which of them died
  std::optional<NodeRef> move_to_;
  uint64_t num_mismatches_ = 0, num_stale_ = 0;
  uint32_t mirror_lag_ = 0;
};

}  // namespace tandem::handoff
