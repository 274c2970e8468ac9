#pragma once
// LocalCluster: a gateway and nodes with real models in one thread, without sockets: the classes that processes run,
// joined by queues, in virtual time. Nodes can be killed.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/node/model_engine.h"
#include "cluster/role/gateway.h"
#include "cluster/role/node.h"
#include "serve/runner/model_runner.h"

namespace tandem::e2e {

struct LocalNodeSpec {
  std::string id;
  handoff::Role role = handoff::Role::kMixed;
};

class LocalCluster {
 public:
  // Every node opens the model for itself.
  LocalCluster(const std::vector<LocalNodeSpec>& nodes, const runner::RunnerOptions& options, uint32_t chunk_tokens,
               const node::MaskMaker& make_masks = {});
  ~LocalCluster();

  handoff::RequestId submit(handoff::RequestState state);
  // One turn of every loop: a millisecond of virtual time.
  void turn();
  size_t num_open() const { return num_open_; }
  void kill(const std::string& node);

  // What the client got, by choice.
  const std::vector<std::vector<TokenId>>& answer(const handoff::RequestId& id) const { return answers_.at(id); }
  std::string error_of(const handoff::RequestId& id) const;  // empty: none
  uint64_t num_pushed_blocks() const { return num_pushed_blocks_; }
  uint64_t num_mirror_frames() const { return num_mirror_frames_; }
  uint32_t num_attempts(const handoff::RequestId& id) const { return attempts_.at(id); }
  const role::Gateway& gateway() const { return *gateway_; }

 private:
  struct LocalNode;
  using Call = std::function<void()>;

  void carry_out(role::GatewayOuts& outs);
  void carry_out(LocalNode& node, role::NodeActions& actions, const std::vector<uint8_t>& payload);
  void act(LocalNode& node, role::NodeAction& action, const std::vector<uint8_t>& payload);
  void send_frame(LocalNode& from, const handoff::NodeRef& to, handoff::PeerMessage message,
                  std::vector<uint8_t> payload);
  void run_queue();
  void run_engine(LocalNode& node);
  void with_node(const std::string& id, const std::function<void(LocalNode&, role::NodeActions&)>& event,
                 const std::vector<uint8_t>& payload = {});

  handoff::Nanos now_ = handoff::kMs;
  SystemClock clock_;
  std::unique_ptr<role::Gateway> gateway_;
  std::map<std::string, std::unique_ptr<LocalNode>> nodes_;
  std::map<std::string, uint64_t> streams_;  // the newest of each node; 0: closed
  std::deque<Call> queue_;                   // what is under way, in order
  std::map<handoff::RequestId, std::vector<std::vector<TokenId>>> answers_;
  std::map<handoff::RequestId, std::string> errors_;
  std::map<handoff::RequestId, uint32_t> attempts_;
  uint64_t next_request_ = 1;
  size_t num_open_ = 0;
  uint64_t num_pushed_blocks_ = 0, num_mirror_frames_ = 0;
};

}  // namespace tandem::e2e
