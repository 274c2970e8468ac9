#include "cluster/registry/registry.h"

namespace tandem::registry {

using handoff::Role;

const char* role_name(Role role) {
  switch (role) {
    case Role::kPrefill: return "prefill";
    case Role::kDecode: return "decode";
    case Role::kMixed: return "mixed";
  }
  return "mixed";
}

std::optional<Role> role_of(const std::string& name) {
  for (const Role role : {Role::kPrefill, Role::kDecode, Role::kMixed}) {
    if (name == role_name(role)) return role;
  }
  return std::nullopt;
}

const char* state_name(NodeState state) {
  switch (state) {
    case NodeState::kStarting: return "starting";
    case NodeState::kReady: return "ready";
    case NodeState::kDraining: return "draining";
    case NodeState::kLeft: return "left";
  }
  return "left";
}

std::optional<NodeState> state_of(const std::string& name) {
  for (const NodeState state : {NodeState::kStarting, NodeState::kReady, NodeState::kDraining, NodeState::kLeft}) {
    if (name == state_name(state)) return state;
  }
  return std::nullopt;
}

// Two flips at once cannot leave a role empty, since each is a transaction on the view that it is checked in.
std::string flip_refusal(const View& view, const std::string& id, Role role) {
  const auto it = view.nodes.find(id);
  if (it == view.nodes.end()) return "no node is called " + id;
  const NodeRecord& node = it->second;
  if (node.role == role) return id + " is a " + role_name(role) + " node already";
  uint32_t num_others = 0;
  for (const auto& [other_id, other] : view.nodes) {
    num_others += other_id != id && other.role == node.role && other.state == NodeState::kReady ? 1 : 0;
  }
  if (num_others == 0) return id + " is the last ready " + std::string(role_name(node.role)) + " node";
  return {};
}

}  // namespace tandem::registry
