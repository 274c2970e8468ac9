#include "cluster/registry/view_edits.h"

namespace tandem::registry {
namespace {

Result<NodeRecord*> find(View& view, const std::string& id, uint64_t incarnation) {
  const auto it = view.nodes.find(id);
  if (it == view.nodes.end()) return Error{ErrorCode::kNotFound, "no node is called " + id};
  if (it->second.incarnation != incarnation) {
    return Error{ErrorCode::kNotFound, "another process is called " + id + " by now"};
  }
  return &it->second;
}

}  // namespace

Result<NodeRecord> join(View& view, const NodeRecord& node) {
  if (node.id.empty()) return Error{ErrorCode::kInvalidArgument, "a node needs a name"};
  NodeRecord record = node;
  ++view.revision;
  const auto known = view.nodes.find(node.id);
  if (known != view.nodes.end()) {  // what an operator has made of it outlives the process
    record.role = known->second.role;
    record.role_epoch = known->second.role_epoch;
  } else {
    record.role_epoch = view.revision;
  }
  view.nodes.insert_or_assign(record.id, record);
  return record;
}

Status set_state(View& view, const std::string& id, uint64_t incarnation, NodeState state) {
  TRY_ASSIGN(NodeRecord* const record, find(view, id, incarnation));
  if (record->state == state) return Done{};
  record->state = state;
  ++view.revision;
  return Done{};
}

Status leave(View& view, const std::string& id, uint64_t incarnation) {
  TRY(find(view, id, incarnation));
  view.nodes.erase(id);
  ++view.revision;
  return Done{};
}

Result<uint64_t> flip_role(View& view, const std::string& id, uint64_t role_epoch, handoff::Role role) {
  if (std::string refusal = flip_refusal(view, id, role); !refusal.empty()) {
    return Error{view.nodes.contains(id) ? ErrorCode::kInvalidArgument : ErrorCode::kNotFound, std::move(refusal)};
  }
  NodeRecord& record = view.nodes.at(id);
  if (record.role_epoch != role_epoch) {
    return Error{ErrorCode::kUnavailable, "the role of " + id + " has changed meanwhile: look again"};
  }
  record.role = role;
  record.role_epoch = ++view.revision;
  return record.role_epoch;
}

Result<uint64_t> set_config(View& view, const std::string& key, const std::string& value, uint64_t config_revision) {
  if (config_revision != view.config_revision) {
    return Error{ErrorCode::kUnavailable, "the configuration is at revision " + std::to_string(view.config_revision) +
                                              " by now, not at " + std::to_string(config_revision) + ": look again"};
  }
  view.config.insert_or_assign(key, value);
  view.config_revision = ++view.revision;
  return view.config_revision;
}

}  // namespace tandem::registry
