#pragma once
// EtcdRegistry: the registry of a cluster of many machines, in an etcd store (docs/adr/0015-etcd.md).
//
//   PREFIX/head      revision, configuration and the members' names; every change compares and writes it
//   PREFIX/nodes/ID  a member's record, under a lease of the process that joined it
//
// Whoever polls after join() keeps the lease alive; a process that does not for `lease_ttl_s` loses its record, and the
// next to poll, whoever it is, writes that down as a revision. A process that finds its lease gone, or the store older
// than what it has seen of it (emptied, or set back), joins again as it was. Any thread; one call at a time, the others
// wait. A call takes at most `timeout_ms` for each endpoint and each of its few requests.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "base/clock.h"
#include "base/thread_safety.h"
#include "cluster/registry/etcd_client.h"
#include "cluster/registry/registry.h"

namespace tandem::registry {

struct EtcdOptions {
  uint32_t lease_ttl_s = 10;
  int timeout_ms = 2000;
  fetch::HttpTls tls = {};
};

class EtcdRegistry final : public Registry {
 public:
  explicit EtcdRegistry(EtcdAddress address, EtcdOptions options = {});
  ~EtcdRegistry() override = default;  // the leases of what did not leave run out

  Result<NodeRecord> join(const NodeRecord& node) override;
  Status set_state(const std::string& id, uint64_t incarnation, NodeState state) override;
  Status leave(const std::string& id, uint64_t incarnation) override;
  Result<uint64_t> flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) override;
  Result<uint64_t> set_config(const std::string& key, const std::string& value, uint64_t config_revision) override;
  Result<std::optional<View>> poll(uint64_t revision) override;
  bool is_local() const override { return false; }

 private:
  struct Stored {
    View view;  // of the members whose records are there
    bool has_lapsed = false;  // a member's record is not
    uint64_t head_revision = 0;                       // etcd's, of the head
    std::map<std::string, uint64_t> node_revisions;   // and of each record, by its name
  };

  Result<Stored> read() REQUIRES(mutex_);
  Result<bool> write(const Stored& stored, const View& view, const std::string& leased) REQUIRES(mutex_);
  // Runs `edit` on the newest view until nobody else was quicker. `leased`: the node whose record is written under our
  // lease.
  template <class Edit>
  std::invoke_result_t<Edit, View&> change(Edit edit, const std::string& leased = {}) REQUIRES(mutex_);
  Status make_lease() REQUIRES(mutex_);
  Status keep_lease() REQUIRES(mutex_);
  Status join_again() REQUIRES(mutex_);
  Result<bool> is_as_seen() REQUIRES(mutex_);

  const std::string head_key_, nodes_prefix_;
  const EtcdOptions options_;
  const SystemClock clock_;
  Mutex mutex_;
  EtcdClient client_ GUARDED_BY(mutex_);
  std::map<std::string, NodeRecord> joined_ GUARDED_BY(mutex_);  // by this object
  uint64_t lease_ GUARDED_BY(mutex_) = 0;
  int64_t kept_at_ns_ GUARDED_BY(mutex_) = 0;
  Stored seen_ GUARDED_BY(mutex_);  // newest
};

}  // namespace tandem::registry
