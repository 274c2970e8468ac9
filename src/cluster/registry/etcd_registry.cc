#include "cluster/registry/etcd_registry.h"

#include <utility>

#include "base/log.h"
#include "cluster/registry/view_edits.h"
#include "cluster/registry/view_json.h"

namespace tandem::registry {
namespace {

constexpr int kMaxTrials = 100;  // each is lost to another's change only
constexpr int64_t kMaxTrials_ns = 10'000'000'000;
constexpr int kKeepsPerTtl = 4;

// A store that was emptied or set back gets what was seen of it; its members come back by themselves.
void restore(View& view, const View& seen) {
  if (view.revision >= seen.revision) return;
  view.revision = seen.revision;
  if (view.config_revision < seen.config_revision) {
    view.config = seen.config;
    view.config_revision = seen.config_revision;
  }
}

// As it was, role and all: nobody has set another one, the record having been gone.
Status put_back(View& view, const NodeRecord& record) {
  const auto known = view.nodes.find(record.id);
  if (known != view.nodes.end() && known->second.incarnation != record.incarnation) {
    return Error{ErrorCode::kNotFound, "another process is called " + record.id + " by now"};
  }
  if (known == view.nodes.end()) view.nodes.emplace(record.id, record);
  ++view.revision;
  return Done{};
}

}  // namespace

EtcdRegistry::EtcdRegistry(EtcdAddress address, EtcdOptions options)
    : head_key_(address.prefix + "/head"),
      nodes_prefix_(address.prefix + "/nodes/"),
      options_(std::move(options)),
      client_(std::move(address.endpoints), options_.tls, options_.timeout_ms) {}

Result<EtcdRegistry::Stored> EtcdRegistry::read() {
  const std::string folder = head_key_.substr(0, head_key_.rfind('/') + 1);
  TRY_ASSIGN(const auto values, client_.read(folder));
  Stored stored;
  Head head;
  if (const auto at = values.find(head_key_); at != values.end()) {
    TRY_ASSIGN(head, head_from_json(at->second.bytes));
    stored.head_revision = at->second.mod_revision;
  }
  stored.view = std::move(head.view);
  for (const auto& [key, value] : values) {
    if (!key.starts_with(nodes_prefix_)) continue;
    std::string id = key.substr(nodes_prefix_.size());
    stored.node_revisions.emplace(id, value.mod_revision);
    if (head.members.erase(id) == 0) continue;  // not by us: join() takes it over
    TRY_ASSIGN(NodeRecord node, node_from_json(value.bytes, key));
    if (node.id != id) return Error{ErrorCode::kCorrupt, key + " is called " + node.id};
    stored.view.nodes.emplace(std::move(id), std::move(node));
  }
  stored.has_lapsed = !head.members.empty();
  return stored;
}

// The head is expected as it was read, and so is each record that changes: a lease may have run out since.
Result<bool> EtcdRegistry::write(const Stored& stored, const View& view, const std::string& leased) {
  EtcdClient::Transaction transaction;
  const auto expect = [&](const std::string& id) {
    const auto known = stored.node_revisions.find(id);
    const uint64_t revision = known == stored.node_revisions.end() ? 0 : known->second;
    transaction.expected.emplace(nodes_prefix_ + id, revision);
    return revision;
  };
  transaction.expected.emplace(head_key_, stored.head_revision);
  transaction.puts.push_back({head_key_, head_to_json(view)});
  for (const auto& [id, node] : view.nodes) {
    const auto known = stored.view.nodes.find(id);
    if (id != leased && known != stored.view.nodes.end() && known->second == node) continue;
    expect(id);
    transaction.puts.push_back({nodes_prefix_ + id, node_to_json(node), id == leased ? lease_ : 0, id != leased});
  }
  for (const auto& [id, node] : stored.view.nodes) {
    if (view.nodes.contains(id)) continue;
    expect(id);
    transaction.keys_to_delete.push_back(nodes_prefix_ + id);
  }
  return client_.commit(transaction);
}

template <class Edit>
std::invoke_result_t<Edit, View&> EtcdRegistry::change(Edit edit, const std::string& leased) {
  const int64_t end_ns = clock_.now_ns() + kMaxTrials_ns;
  for (int trial = 0; trial < kMaxTrials && clock_.now_ns() < end_ns; ++trial) {
    TRY_ASSIGN(const Stored stored, read());
    View view = stored.view;
    restore(view, seen_.view);
    if (stored.has_lapsed) ++view.revision;
    auto result = edit(view);
    if (view.revision == stored.view.revision) return result;
    TRY_ASSIGN(const bool is_written, write(stored, view, leased));
    if (is_written) return result;
  }
  return Error{ErrorCode::kUnavailable, "the registry changes too often"};
}

Status EtcdRegistry::make_lease() {
  if (lease_ != 0) {
    TRY_ASSIGN(const bool is_kept, client_.keep_alive(lease_));
    if (!is_kept) lease_ = 0;
  }
  if (lease_ == 0) {
    TRY_ASSIGN(lease_, client_.grant_lease(options_.lease_ttl_s));
  }
  kept_at_ns_ = clock_.now_ns();
  return Done{};
}

Status EtcdRegistry::keep_lease() {
  const int64_t now_ns = clock_.now_ns();
  if (joined_.empty() || now_ns - kept_at_ns_ < int64_t{options_.lease_ttl_s} * 1'000'000'000 / kKeepsPerTtl) {
    return Done{};
  }
  const uint64_t before = lease_;
  TRY(make_lease());
  if (lease_ == before) return Done{};
  log_warning("cluster/registry", "the lease had run out: joining again");
  Status again = join_again();
  if (!again) lease_ = kept_at_ns_ = 0;  // lost to the next poll too
  return again;
}

Status EtcdRegistry::join_again() {
  for (auto it = joined_.begin(); it != joined_.end();) {
    const auto seen = seen_.view.nodes.find(it->first);
    if (seen != seen_.view.nodes.end() && seen->second.incarnation == it->second.incarnation) it->second = seen->second;
    const Status put = change([&](View& view) { return put_back(view, it->second); }, it->first);
    if (!put && put.error().code != ErrorCode::kNotFound) return Error(put.error());
    it = put ? std::next(it) : joined_.erase(it);
  }
  return Done{};
}

Result<NodeRecord> EtcdRegistry::join(const NodeRecord& node) {
  const Lock lock(mutex_);
  TRY(make_lease());
  auto joined = change([&](View& view) { return registry::join(view, node); }, node.id);
  if (joined) joined_.insert_or_assign(node.id, *joined);
  return joined;
}

Status EtcdRegistry::set_state(const std::string& id, uint64_t incarnation, NodeState state) {
  const Lock lock(mutex_);
  return change([&](View& view) { return registry::set_state(view, id, incarnation, state); });
}

Status EtcdRegistry::leave(const std::string& id, uint64_t incarnation) {
  const Lock lock(mutex_);
  const auto own = joined_.find(id);
  if (own != joined_.end() && own->second.incarnation == incarnation) joined_.erase(own);
  TRY(change([&](View& view) { return registry::leave(view, id, incarnation); }));
  if (joined_.empty() && lease_ != 0) {
    (void)client_.revoke_lease(std::exchange(lease_, 0));  // else it runs out
  }
  return Done{};
}

Result<uint64_t> EtcdRegistry::flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) {
  const Lock lock(mutex_);
  return change([&](View& view) { return registry::flip_role(view, id, role_epoch, role); });
}

Result<uint64_t> EtcdRegistry::set_config(const std::string& key, const std::string& value, uint64_t config_revision) {
  const Lock lock(mutex_);
  return change([&](View& view) { return registry::set_config(view, key, value, config_revision); });
}

// One short answer in place of all records: every process asks several times a second.
Result<bool> EtcdRegistry::is_as_seen() {
  TRY_ASSIGN(const EtcdClient::Look look, client_.look(head_key_, nodes_prefix_));
  return look.mod_revision == seen_.head_revision && look.num_keys == seen_.node_revisions.size() &&
         !seen_.has_lapsed;
}

Result<std::optional<View>> EtcdRegistry::poll(uint64_t revision) {
  const Lock lock(mutex_);
  TRY(keep_lease());
  TRY_ASSIGN(const bool is_known, is_as_seen());
  if (!is_known) {
    TRY_ASSIGN(Stored stored, read());
    if (stored.view.revision < seen_.view.revision) {
      if (joined_.empty()) {
        return Error{ErrorCode::kUnavailable, "the store is older than what was seen of it: waiting for its nodes"};
      }
      log_warning("cluster/registry", "the store is older than what was seen of it: joining again");
      TRY(make_lease());
      TRY(join_again());
      TRY_ASSIGN(stored, read());
    }
    if (stored.has_lapsed) {
      TRY(change([](View&) -> Status { return Done{}; }));
      TRY_ASSIGN(stored, read());
    }
    if (stored.view.revision < seen_.view.revision) return Error{ErrorCode::kUnavailable, "the store goes back"};
    seen_ = std::move(stored);
  }
  if (seen_.view.revision <= revision) return std::optional<View>();
  return std::optional<View>(seen_.view);
}

}  // namespace tandem::registry
