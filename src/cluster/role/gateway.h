#pragma once
// Gateway: requests, sessions to nodes and the choice of pairs as pure policy. The only long queue of a cluster is
// here. Event and time in, actions out; no sockets, no threads, no clock.

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cluster/handoff/bad_pairs.h"
#include "cluster/handoff/gateway_request.h"
#include "cluster/handoff/suspicion.h"

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
using GatewayOut = std::variant<OpenStream, CloseStream, SendNode, DeliverToken, RequestEnded>;
using GatewayOuts = std::vector<GatewayOut>;

struct GatewayConfig {
  handoff::NodeRef self;
  handoff::Timing timing;
  size_t max_requests = 4096;      // over it a new one is refused
  double prefill_tokens_per_s = 10000;  // for deadlines; at least what a loaded node does
  handoff::Nanos ramp = 10000 * handoff::kMs;  // a new node's weight goes from 10 to 100 %
  bool is_mirrored = true, does_holder_adopt = true;
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
  bool is_draining = false;   // its own word or the operator's
  handoff::Nanos stuck_backoff = 0;  // a stuck engine's node speaks well and does nothing: it is asked ever more rarely
  uint32_t num_prefills = 0, num_decodes = 0;  // this gateway's, by role in their pairs
};

class Gateway final : public handoff::Placement {
 public:
  struct TestOnly {
    bool has_no_attempt_fence = false, has_no_session_fence = false, has_no_new_attempt = false, never_releases = false,
         forgets_bad_pairs = false;
  };

  explicit Gateway(GatewayConfig config) : config_(std::move(config)) {}

  // The registry's view. A node that leaves it loses new work only, while its session lives.
  void add_node(const std::string& id) { links_.try_emplace(id); }

  // kExhausted: the queue is full, the client gets 429 or 503 at once. `deadline`: on this clock, or INT64_MAX.
  Status submit(handoff::RequestId id, handoff::RequestState state, handoff::Nanos deadline, handoff::Nanos now);
  void cancel(const handoff::RequestId& id, handoff::Nanos now, GatewayOuts& out);

  void on_stream_message(const std::string& node, uint64_t stream, const handoff::SessionMessage& message,
                         handoff::Nanos now, GatewayOuts& out);
  void on_stream_closed(const std::string& node, uint64_t stream, handoff::Nanos now, GatewayOuts& out);
  void on_tick(handoff::Nanos now, GatewayOuts& out);

  // Planned: no new work for the node, its decodes move elsewhere.
  void drain(const std::string& node);
  // Planned: this decode moves elsewhere, if there is a place and it runs.
  void move(const handoff::RequestId& id, handoff::Nanos now, GatewayOuts& out);
  // Closes the session as if the node were lost. What suspicion does; also called for a stuck engine.
  void suspect(const std::string& node, handoff::Nanos now, GatewayOuts& out);

  // Placement
  std::optional<handoff::Placed> place(const handoff::PlacementQuery& query) const override;
  std::optional<handoff::NodeRef> place_holder(const handoff::PlacementQuery& query) const override;
  std::optional<handoff::NodeRef> open_node(const std::string& node) const override;
  bool has_open_node() const override;
  handoff::Nanos progressed_at(const std::string& node) const override;

  const std::map<handoff::RequestId, std::unique_ptr<handoff::GatewayRequest>>& requests() const { return requests_; }
  const std::map<std::string, NodeLink>& links() const { return links_; }
  uint64_t num_suspicions() const { return num_suspicions_; }
  uint64_t num_mismatches() const { return num_mismatches_; }
  size_t num_bad_pairs() const { return bad_pairs_.size(now_); }
  std::string dump() const;

  TestOnly test_only;

 private:
  void open(const std::string& node, NodeLink& link, handoff::Nanos now, GatewayOuts& out);
  void on_hello(const std::string& node, NodeLink& link, const handoff::Hello& hello, handoff::Nanos now,
                GatewayOuts& out);
  void on_beat(const std::string& node, NodeLink& link, const handoff::Beat& beat, handoff::Nanos now,
               GatewayOuts& out);
  void on_batch(const std::string& node, const handoff::TokenBatch& batch, handoff::Nanos now, GatewayOuts& out);
  void watch(handoff::Nanos now, GatewayOuts& out);
  void lose(const std::string& node, bool is_broken, handoff::Nanos now, GatewayOuts& out);
  void move_away(handoff::Nanos now, GatewayOuts& out);
  void count_work();
  bool is_busy(const std::string& node) const;
  void carry_out(handoff::GatewayActions& actions, handoff::Nanos now, GatewayOuts& out);
  void sweep();
  template <class Event>
  void with_request(const handoff::RequestId& id, handoff::Nanos now, GatewayOuts& out, const Event& event);
  double load_of(const NodeLink& link, uint32_t work) const;
  bool may_serve(const std::string& node, const NodeLink& link) const;

  GatewayConfig config_;
  std::map<std::string, NodeLink> links_;
  std::map<handoff::RequestId, std::unique_ptr<handoff::GatewayRequest>> requests_;  // in the order of their ids
  handoff::BadPairs bad_pairs_;
  handoff::OwnStall own_stall_;
  handoff::Nanos now_ = 0, last_beat_ = 0, blames_itself_until_ = 0;
  bool blames_itself_ = false;
  uint64_t next_stream_ = 1, num_suspicions_ = 0, num_mismatches_ = 0;
};

}  // namespace tandem::role
