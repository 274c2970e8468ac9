#include "cluster/registry/memory_registry.h"

#include "cluster/registry/view_edits.h"

namespace tandem::registry {

Status MemoryRegistry::check_reachable() const {
  if (!is_reachable_) return Error{ErrorCode::kUnavailable, "the registry cannot be reached"};
  return Done{};
}

Result<NodeRecord> MemoryRegistry::join(const NodeRecord& node) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  return registry::join(view_, node);
}

Status MemoryRegistry::set_state(const std::string& id, uint64_t incarnation, NodeState state) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  return registry::set_state(view_, id, incarnation, state);
}

Status MemoryRegistry::leave(const std::string& id, uint64_t incarnation) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  return registry::leave(view_, id, incarnation);
}

Result<uint64_t> MemoryRegistry::flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  return registry::flip_role(view_, id, role_epoch, role);
}

Result<uint64_t> MemoryRegistry::set_config(const std::string& key, const std::string& value,
                                            uint64_t config_revision) {
  const Lock lock(mutex_);
  TRY(check_reachable());
  return registry::set_config(view_, key, value, config_revision);
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
