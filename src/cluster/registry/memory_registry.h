#pragma once
// MemoryRegistry: a registry inside one process, for tests and for a cluster that one process runs. Can be made
// unreachable, and can lose records as expired leases would. Any thread.

#include "base/thread_safety.h"
#include "cluster/registry/registry.h"

namespace tandem::registry {

class MemoryRegistry final : public Registry {
 public:
  Result<NodeRecord> join(const NodeRecord& node) override;
  Status set_state(const std::string& id, uint64_t incarnation, NodeState state) override;
  Status leave(const std::string& id, uint64_t incarnation) override;
  Result<uint64_t> flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) override;
  Result<uint64_t> set_config(const std::string& key, const std::string& value, uint64_t config_revision) override;
  Result<std::optional<View>> poll(uint64_t revision) override;

  void set_reachable(bool is_reachable);
  void expire(const std::string& id);  // the lease ends: the record goes, whoever wrote it

 private:
  Status check_reachable() const REQUIRES(mutex_);

  mutable Mutex mutex_;
  View view_ GUARDED_BY(mutex_);
  bool is_reachable_ GUARDED_BY(mutex_) = true;
};

}  // namespace tandem::registry
