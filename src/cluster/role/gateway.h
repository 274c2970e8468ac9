#pragma once
// Gateway: requests, sessions to nodes and the choice of pairs as pure policy. The only long queue of a cluster is
// here. Event and time in, actions out; no sockets, no threads, no clock.

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/tenant_shares.h"
#include "cluster/handoff/bad_pairs.h"
#include "cluster/handoff/gateway_request.h"
#include "cluster/handoff/suspicion.h"
#include "cluster/role/link_router.h"

namespace tandem::role {

struct OpenStream {  // connect; then what is sent on it goes in order
  std::string node;
  uint64_t stream = 0;
};
struct CloseStream {
  std::string node;
  uint64_t stream = 0;
};
struct SendNode {
  std::string node;
  uint64_t stream = 0;
  handoff::SessionMessage message;
};
struct DeliverToken {  // to the client
  handoff::TokenEntry entry;
};
struct RequestEnded {
  handoff::RequestId request;
  std::optional<ErrorCode> error;
  std::string message;
};
// Why a request's attempt or phase changed.
enum class Cause : uint8_t {
  kProgress,  // as it goes when nothing fails
  kSilence,   // a node of it fell silent
  kClosed,    // its stream ended
  kStuck,     // its engine does nothing
  kTransfer,  // the KV did not get there
  kFailed,    // a node refused or failed it
  kTimeout,   // no answer in time
  kPlanned,   // it moves
};
struct RequestMoved {  // comes before the other outs of the same event
  handoff::RequestId request;
  handoff::GatewayRequest::Phase from{}, to{};
  handoff::Attempt attempt = 0;
  bool is_new_attempt = false;
  Cause cause = Cause::kProgress;
};
struct NodeTimings {  // a node has measured
  std::string node;
  handoff::Timings timings;
};
using GatewayOut =
    std::variant<OpenStream, CloseStream, SendNode, DeliverToken, RequestEnded, RequestMoved, NodeTimings>;
using GatewayOuts = std::vector<GatewayOut>;

// How a request is to be treated; its state says what is to be done.
struct Ask {
  handoff::Nanos deadline = INT64_MAX;  // on the gateway's clock
  int32_t priority = 0;                 // lower goes first
  std::string traceparent = {};         // for the nodes
  std::string tenant = {};              // whose turn it takes
};

struct GatewayConfig {
  handoff::NodeRef self;
  handoff::Timing timing;
  size_t max_requests = 4096;                  // over it a new one is refused
  double prefill_tokens_per_s = 10000;         // for deadlines; at least what a loaded node does
  handoff::Nanos ramp = 10000 * handoff::kMs;  // a new node's weight goes from 10 to 100 %
  bool is_mirrored = true, does_holder_adopt = true;
  handoff::Nanos priority_step = 10000 * handoff::kMs;  // a level of priority counts as so much later an arrival
  // A request that has waited so long for room lets none behind it take what becomes free.
  handoff::Nanos patience = 2000 * handoff::kMs;
  std::map<std::string, double> tenant_weights = {};  // share of the prompt tokens under contention; absent: 1
  // Chooses where new requests go; none: by role, then by load.
  std::optional<router::RouterConfig> router = std::nullopt;
};

enum class LinkState : uint8_t { kClosed, kOpening, kOpen };

// A node as this gateway sees it.
struct NodeLink {
  LinkState state = LinkState::kClosed;
  uint64_t stream = 0;
  handoff::Hello hello;  // its newest
  handoff::Beat beat;
  handoff::BeatGaps gaps;
  handoff::Nanos opened_at = 0, retry_at = 0, progressed_at = 0;
  handoff::Nanos lost_at = 0;             // when its last session ended
  bool was_silent = false;                // its last session ended by suspicion
  handoff::Nanos reopen_pause = 0;        // after the last try that brought no Hello; 0: there was none
  bool is_draining = false;               // its own word or the operator's
  bool is_retired = false;                // its record has gone: no new work
  bool is_removed = false;                // and nothing is open: forgotten as soon as no request knows it
  std::optional<uint64_t> stuck_in_step;  // it was called stuck in this step
  uint32_t patience = 1;                  // doubles when an engine that was called stuck ends its step all the same
  handoff::Nanos stuck_backoff = 0;  // a stuck engine's node speaks well and does nothing: it is asked ever more rarely
  uint32_t num_prefills = 0, num_decodes = 0;  // this gateway's, by role in their pairs
  uint32_t num_requests = 0;                   // this gateway's that may have something here
  uint64_t prefill_tokens = 0;                 // of num_prefills
  std::optional<router::NodeIndex> router_index;
  handoff::Nanos told_at = 0;  // when it got work that no beat has shown yet; 0: none
};

class Gateway final : public handoff::Placement {
 public:
  struct TestOnly {
    bool has_no_attempt_fence = false, has_no_session_fence = false, has_no_new_attempt = false, never_releases = false,
         forgets_bad_pairs = false;
  };

  explicit Gateway(GatewayConfig config) : config_(std::move(config)), shares_(config_.tenant_weights, kTenantStart) {
    if (config_.router) router_.emplace(*config_.router);
  }

  // The registry's view. A node that leaves it loses new work only, while its session lives. Added again, its record
  // having changed: a session is tried at once.
  void add_node(const std::string& id);
  void retire_node(const std::string& id);
  void remove_node(const std::string& id);
  // A newer role_epoch than the node's Hello told. Decodes leave a node that only prefills from now on.
  void set_role(const std::string& node, handoff::Role role, uint64_t role_epoch, handoff::Nanos now, GatewayOuts& out);

  // kExhausted: the queue is full, the client gets 429 or 503 at once.
  Status submit(handoff::RequestId id, handoff::RequestState state, handoff::Nanos now, Ask ask = {});
  void cancel(const handoff::RequestId& id, handoff::Nanos now, GatewayOuts& out);

  void on_stream_message(const std::string& node, uint64_t stream, const handoff::SessionMessage& message,
                         handoff::Nanos now, GatewayOuts& out);
  // `is_refused`: it did not open, for no process listens at the node's address.
  void on_stream_closed(const std::string& node, uint64_t stream, handoff::Nanos now, GatewayOuts& out,
                        bool is_refused = false);
  void on_tick(handoff::Nanos now, GatewayOuts& out);

  // Planned: no new work for the node, its decodes move elsewhere.
  void drain(const std::string& node);
  // Every node drops the cached prefixes that nobody uses, and is thought to hold none. A node that has no session now
  // is not asked.
  void forget_prefixes(GatewayOuts& out);
  // Planned: this decode moves elsewhere, if there is a place and it runs.
  void move(const handoff::RequestId& id, handoff::Nanos now, GatewayOuts& out);
  // Closes the session as if the node were lost. What suspicion does; also called for a stuck engine.
  void suspect(const std::string& node, handoff::Nanos now, GatewayOuts& out, Cause cause = Cause::kSilence);

  // A node that may prefill and one that may decode take new work, by their roles.
  bool can_serve() const { return can_serve_with(0); }
  // The same of nodes that know extended requests (handoff::is_extended).
  bool can_serve_extended() const { return can_serve_with(handoff::kProtoExtendedRequests); }

  // Placement
  std::optional<handoff::Placed> place(const handoff::PlacementQuery& query) const override;
  std::optional<handoff::NodeRef> place_holder(const handoff::PlacementQuery& query) const override;
  std::optional<handoff::NodeRef> open_node(const std::string& node) const override;
  bool has_open_node(bool is_extended) const override;
  handoff::Nanos progressed_at(const std::string& node) const override;

  const std::map<handoff::RequestId, std::unique_ptr<handoff::GatewayRequest>>& requests() const { return requests_; }
  const std::map<std::string, NodeLink>& links() const { return links_; }
  uint64_t num_suspicions() const { return num_suspicions_; }
  uint64_t num_false_suspicions() const { return num_false_suspicions_; }  // the same process greeted again
  uint64_t num_mismatches() const { return num_mismatches_; }
  uint64_t num_stale() const { return num_stale_; }  // messages and tokens of older sessions and attempts
  size_t num_bad_pairs() const { return bad_pairs_.size(now_); }
  // Stops the process when the links' counters are not those of the requests.
  void check_invariants() const;
  std::string dump() const;

  TestOnly test_only;

 private:
  void open(const std::string& node, NodeLink& link, handoff::Nanos now, GatewayOuts& out);
  void on_hello(const std::string& node, NodeLink& link, const handoff::Hello& hello, handoff::Nanos now,
                GatewayOuts& out);
  void on_beat(const std::string& node, NodeLink& link, const handoff::Beat& beat, handoff::Nanos now,
               GatewayOuts& out);
  void on_batch(const std::string& node, const handoff::TokenBatch& batch, handoff::Nanos now, GatewayOuts& out);
  void close(NodeLink& link, handoff::Nanos now);
  void note_death(const NodeLink& link);  // of the process that said Hello last
  void watch(handoff::Nanos now, GatewayOuts& out);
  void move_away(handoff::Nanos now, GatewayOuts& out);
  // What of a request is in the links' counters. The links stay: one that has requests is not forgotten.
  struct Work {
    std::vector<NodeLink*> involved;
    NodeLink *source = nullptr, *target = nullptr;
    uint64_t prefill_tokens = 0;
    bool operator==(const Work&) const = default;
  };
  Work work_of(const handoff::GatewayRequest& request);
  static void count(const Work& work, uint32_t by);
  void recount(const handoff::GatewayRequest& request);
  void tick_requests(handoff::Nanos now, GatewayOuts& out);
  // Of a tenant, by rank; the last is next.
  using Lanes = std::map<std::string, std::vector<std::pair<handoff::Nanos, handoff::RequestId>>>;
  void tick_queue(Lanes lanes, handoff::Nanos now, GatewayOuts& out);
  void carry_out(handoff::GatewayActions& actions, handoff::Nanos now, GatewayOuts& out);
  void sweep();
  template <class Event>
  void with_request(const handoff::RequestId& id, handoff::Nanos now, GatewayOuts& out, Cause cause,
                    const Event& event);
  double weight_of(const NodeLink& link) const;
  double load_of(const NodeLink& link, uint32_t work) const;
  void show_links_to_router() const;
  std::optional<handoff::Placed> placed_at(const std::string& source, const std::string& target,
                                           const handoff::PlacementQuery& query) const;
  // What the router says, when it has something to say.
  std::optional<std::optional<handoff::Placed>> route(const handoff::PlacementQuery& query) const;
  bool may_serve(const NodeLink& link) const;
  bool can_serve_with(uint32_t least_proto) const;
  bool knows_all_of(const NodeLink& link, const handoff::RequestId& request) const;

  static constexpr double kTenantStart = 512;  // tokens; TenantShares

  GatewayConfig config_;
  std::map<std::string, NodeLink> links_;
  std::map<handoff::RequestId, std::unique_ptr<handoff::GatewayRequest>> requests_;  // in the order of their ids
  std::map<handoff::RequestId, Work> work_;                                          // of each of requests_
  std::map<handoff::RequestId, std::string> tenants_;                                // the same
  TenantShares shares_;                                                              // in prompt tokens
  handoff::BadPairs bad_pairs_;
  mutable std::optional<LinkRouter> router_;  // remembers its choices, which are asked for by const functions
  mutable std::optional<handoff::RequestId> no_room_for_;  // what the router has just said it of
  bool is_queue_held_ = false;                             // for the rest of this tick
  handoff::OwnStall own_stall_;
  handoff::Nanos now_ = 0, last_beat_ = 0, blames_itself_until_ = 0;
  bool blames_itself_ = false;
  uint64_t next_stream_ = 1, num_suspicions_ = 0, num_false_suspicions_ = 0, num_mismatches_ = 0, num_stale_ = 0;
};

}  // namespace tandem::role
