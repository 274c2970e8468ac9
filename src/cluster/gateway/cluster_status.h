#pragma once
// What a gateway tells of the cluster: each node as its registry record, its session and its beats say. Pure.

#include <optional>
#include <string>
#include <vector>

#include "cluster/registry/view_keeper.h"
#include "cluster/role/gateway.h"

namespace tandem::gateway {

struct KvStatus {  // blocks
  uint32_t private_total = 0, private_free = 0, shared_total = 0, shared_free = 0;
};
struct NodeStatus {
  std::string id, role, state;
  std::string metrics = {};  // URL; empty: none
  uint64_t pid = 0;  // 0: not said
  uint64_t incarnation = 0, role_epoch = 0;
  uint64_t config_revision = 0;  // in force at the node, as its newest beat says
  uint32_t num_running = 0, num_waiting = 0;
  std::optional<KvStatus> kv;  // absent: nobody has said
};
struct ClusterStatus {
  std::vector<NodeStatus> nodes;  // by id, the gateway last
  uint64_t view = 0;
  uint64_t config_revision = 0;  // the newest
};

// In order of weight: left, draining, ready, starting (never had a session); a lost session is suspect until the lease
// is over, then dead.
std::string state_of(const registry::NodeRecord& record, const role::NodeLink* link, const handoff::Timing& timing,
                     handoff::Nanos now);

ClusterStatus status_of(const registry::ViewKeeper& view, const role::Gateway& policy, const handoff::Timing& timing,
                        handoff::Nanos now);

std::string to_json(const ClusterStatus& status);

}  // namespace tandem::gateway
