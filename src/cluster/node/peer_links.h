#pragma once
// PeerLinks: a node's KV data plane. One connection per pair of processes, opened by who needs it first; frames in the
// order of the calls. A connection that breaks is told once per peer and never repaired here: what follows is another.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "cluster/handoff/messages.h"
#include "cluster/node/frame_queue.h"
#include "net/transport/network.h"

namespace tandem::node {

// What a connection shows when it is opened: the token of a request that both ends were told of. 0: none.
struct KvPass {
  handoff::RequestId request;
  uint64_t token = 0;
};

// What PeerLinks wants of its owner. All calls on the loop's thread, none inside send().
class PeerOwner {
 public:
  // A whole frame. `checksum`: of the payload as it lies in our own memory, where it stays until the call returns.
  virtual void on_peer_frame(const handoff::NodeRef& from, const handoff::PeerMessage& message, uint64_t checksum,
                             const std::byte* payload) = 0;
  virtual void on_peer_lost(const handoff::NodeRef& peer) = 0;
  // Where a process listens; empty: not known (any more).
  virtual std::string address_of(const handoff::NodeRef& peer) = 0;
  // Whether who shows this may speak here.
  virtual bool is_let_in(const KvPass& pass) = 0;

 protected:
  ~PeerOwner() = default;
};

// A frame that is not made yet: fills message and payload when its turn comes, so that what waits costs no memory.
// False: it is no longer wanted.
using FrameMaker = std::function<bool(handoff::PeerMessage& message, std::vector<std::byte>& payload)>;

// For a node whose KV thread and engine share a core: while `gives_way` says so, frames are taken only as fast as that
// costs a `share` of the thread's time, in small pieces, so that a transfer that arrives makes no single step long.
struct IntakePace {
  std::function<bool()> gives_way;      // decodes are running
  std::function<int64_t()> cpu_now_ns;  // what the loop's thread has used
  double share = 0.1;
};

class PeerLinks final : public transport::Acceptor, public transport::LoopClient {
 public:
  PeerLinks(transport::EventLoop& loop, transport::Network& network, handoff::NodeRef self, PeerOwner& owner,
            MetricRegistry& metrics);
  ~PeerLinks();

  Status listen(const std::string& address);
  // Bytes a second that each peer is sent from now on; 0: as many as go. Before the first send().
  void hold_to_rate(uint64_t bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  void pace_intake(IntakePace pace) { pace_ = std::move(pace); }  // before listen()
  std::string address() const { return listener_ ? listener_->address() : std::string(); }
  // Frames in order, but those of kCatchUp among themselves only: they give way (frame_queue.h). `pass`: for the case
  // that a connection has to be opened; without a token none is, and the frame goes nowhere.
  void send(const handoff::NodeRef& to, const KvPass& pass, FrameMaker make,
            FrameClass frame_class = FrameClass::kUsual);

 private:
  class Link;
  transport::ConnectionHandler* refuse(const char* why);
  transport::ConnectionHandler* admit(transport::Bytes greeting) override;
  void accepted(std::unique_ptr<transport::Connection> connection) override;
  void on_task() override;
  void opened(Link& link, transport::Connection& connection);
  void lose(Link& link);
  int64_t pause_after_ns(int64_t begin_cpu_ns);
  int64_t cpu_now_ns() const { return pace_.gives_way ? pace_.cpu_now_ns() : 0; }
  void tell_lost(const handoff::NodeRef& peer);

  transport::EventLoop& loop_;
  transport::Network& network_;
  const handoff::NodeRef self_;
  PeerOwner& owner_;
  std::unique_ptr<transport::Listener> listener_;
  std::map<uint64_t, std::unique_ptr<Link>> links_;     // by our number
  std::map<handoff::NodeRef, uint64_t> sending_;        // the one that frames for this peer take
  std::map<transport::ConnectionId, std::unique_ptr<transport::Connection>> accepted_;  // for a moment: not opened yet
  std::vector<handoff::NodeRef> lost_;                  // to be told, outside of any call
  uint64_t next_link_ = 1;
  int64_t refusal_logged_ns_ = INT64_MIN;
  uint64_t num_refused_ = 0;  // not in the log yet
  uint64_t bytes_per_s_ = 0;
  IntakePace pace_;
  int64_t intake_at_ns_ = 0;  // no frame before
  Counter &frames_sent_, &frames_received_, &bytes_sent_, &bytes_received_, &losses_, &refused_;
};

}  // namespace tandem::node
