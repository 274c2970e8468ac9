#include "cluster/gateway/cluster_status.h"

#include "base/json.h"

namespace tandem::gateway {

using handoff::Nanos;
using registry::NodeState;
using role::LinkState;

std::string state_of(const registry::NodeRecord& record, const role::NodeLink* link, const handoff::Timing& timing,
                     Nanos now) {
  if (record.state == NodeState::kLeft) return "left";
  const bool has_spoken = link != nullptr && link->hello.from.incarnation != 0;
  if (!has_spoken) return record.state == NodeState::kDraining ? "draining" : "starting";
  if (link->state == LinkState::kOpen) {
    return link->is_draining || record.state == NodeState::kDraining ? "draining" : "ready";
  }
  if (link->hello.from.incarnation != record.incarnation) return "starting";  // a new process that was not met yet
  return now - link->lost_at < timing.lease ? "suspect" : "dead";
}

ClusterStatus status_of(const registry::ViewKeeper& view, const role::Gateway& policy, const handoff::Timing& timing,
                        Nanos now) {
  ClusterStatus status;
  status.view = view.revision();
  status.config_revision = view.config_revision();
  for (const auto& [id, record] : view.nodes()) {
    const auto it = policy.links().find(id);
    const role::NodeLink* link = it == policy.links().end() ? nullptr : &it->second;
    NodeStatus& node = status.nodes.emplace_back();
    node.id = id;
    node.role = registry::role_name(record.role);
    node.state = state_of(record, link, timing, now);
    node.pid = record.pid;
    node.metrics = record.metrics;
    node.incarnation = record.incarnation;
    node.role_epoch = record.role_epoch;
    if (link == nullptr || link->state != LinkState::kOpen) continue;
    node.config_revision = link->beat.config_revision;
    node.num_running = link->beat.num_running;
    node.num_waiting = link->beat.num_waiting;
    if (link->beat.io_seq == 0) continue;  // no beat yet
    const uint32_t num_private = link->hello.private_blocks;
    node.kv = KvStatus{num_private, link->beat.private_free, link->hello.capacity_blocks - num_private,
                       link->beat.shared_free};
  }
  return status;
}

std::string to_json(const ClusterStatus& status) {
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  for (const NodeStatus& node : status.nodes) {
    json.begin_object().key("id").string(node.id).key("role").string(node.role).key("state").string(node.state);
    json.key("pid");
    if (node.pid == 0) json.null();
    else json.unsigned_integer(node.pid);
    if (!node.metrics.empty()) json.key("metrics").string(node.metrics);
    json.key("incarnation").unsigned_integer(node.incarnation).key("role_epoch").unsigned_integer(node.role_epoch);
    json.key("config_revision").unsigned_integer(node.config_revision);
    json.key("running").unsigned_integer(node.num_running).key("waiting").unsigned_integer(node.num_waiting);
    json.key("kv").begin_object();
    const auto put = [&](const char* name, uint32_t KvStatus::*number) {
      json.key(name);
      if (node.kv) json.unsigned_integer((*node.kv).*number);
      else json.null();
    };
    put("private_total", &KvStatus::private_total);
    put("private_free", &KvStatus::private_free);
    put("shared_total", &KvStatus::shared_total);
    put("shared_free", &KvStatus::shared_free);
    json.end_object().end_object();
  }
  json.end_array().key("view").unsigned_integer(status.view);
  json.key("config_revision").unsigned_integer(status.config_revision).end_object();
  return json.take();
}

}  // namespace tandem::gateway
