#include "cluster/registry/memory_registry.h"

namespace tandem::registry {

Status MemoryRegistry::check_reachable() const {
  if (!is_reachable_) return Error{ErrorCode::kUnavailable, "the registry cannot be reached"};
  return Done{};
}

Result<NodeRecord*> MemoryRegistry::find(const std::string& id, uint64_t incarnation) {
  TRY(check_reachable());
  const auto it = view_.nodes.find(id);
  if (it == view_.nodes.end()) return Error{ErrorCode::kNotFound, "no node is called " + id};
  if (it->second.incarnation != incarnation) {
    return Error{ErrorCode::kNotFound, "another process is called " + id + " by now"};
  }
  return &it->second;
}

Result<NodeRecord> MemoryRegistry::join(const NodeRecord& node) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  if (node.id.empty()) return Error{ErrorCode::kInvalidArgument, "a node needs a name"};
  NodeRecord record = node;
  const auto known = view_.nodes.find(node.id);
  if (known != view_.nodes.end()) {  // what an operator has made of it outlives the process
    record.role = known->second.role;
    record.role_epoch = known->second.role_epoch;
  }
  ++view_.revision;
  if (known == view_.nodes.end()) record.role_epoch = view_.revision;
  view_.nodes.insert_or_assign(record.id, record);
  return record;
}

Status MemoryRegistry::set_state(const std::string& id, uint64_t incarnation, NodeState state) {
  const Lock lock(mutex_);
  TRY_ASSIGN(NodeRecord* const record, find(id, incarnation));
  if (record->state == state) return Done{};
  record->state = state;
  ++view_.revision;
  return Done{};
}

Status MemoryRegistry::leave(const std::string& id, uint64_t incarnation) {
  const Lock lock(mutex_);
  TRY(find(id, incarnation));
  view_.nodes.erase(id);
  ++view_.revision;
  return Done{};
}

Result<uint64_t> MemoryRegistry::flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  if (std::string refusal = flip_refusal(view_, id, role); !refusal.empty()) {
    return Error{view_.nodes.contains(id) ? ErrorCode::kInvalidArgument : ErrorCode::kNotFound, std::move(refusal)};
  }
  NodeRecord& record = view_.nodes.at(id);
  if (record.role_epoch != role_epoch) {
    return Error{ErrorCode::kUnavailable, "the role of " + id + " has changed meanwhile: look again"};
  }
  record.role = role;
  record.role_epoch = ++view_.revision;
  return record.role_epoch;
}

Result<uint64_t> MemoryRegistry::set_config(const std::string& key, const std::string& value,
                                            uint64_t config_revision) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  if (config_revision != view_.config_revision) {
    return Error{ErrorCode::kUnavailable, "the configuration is at revision " + std::to_string(view_.config_revision) +
                                              " by now, not at " + std::to_string(config_revision) + ": look again"};
  }
  view_.config.insert_or_assign(key, value);
  view_.config_revision = ++view_.revision;
  return view_.config_revision;
}

Result<std::optional<View>> MemoryRegistry::poll(uint64_t revision) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  if (view_.revision <= revision) return std::optional<View>();
  return std::optional<View>(view_);
}

void MemoryRegistry::set_reachable(bool is_reachable) {
  const Lock lock(mutex_);
  is_reachable_ = is_reachable;
}

void MemoryRegistry::expire(const std::string& id) {
  const Lock lock(mutex_);
  if (view_.nodes.erase(id) > 0) ++view_.revision;
}

}  // namespace tandem::registry
