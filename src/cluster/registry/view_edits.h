#pragma once
// The changes that a registry makes to its view, as functions of the view alone: every implementation applies these
// under its own lock or transaction, so that all answer alike. Each change raises the view's revision.

#include "cluster/registry/registry.h"

namespace tandem::registry {

// Contracts: Registry's functions of the same names.
Result<NodeRecord> join(View& view, const NodeRecord& node);
Status set_state(View& view, const std::string& id, uint64_t incarnation, NodeState state);
Status leave(View& view, const std::string& id, uint64_t incarnation);
Result<uint64_t> flip_role(View& view, const std::string& id, uint64_t role_epoch, handoff::Role role);
Result<uint64_t> set_config(View& view, const std::string& key, const std::string& value, uint64_t config_revision);

}  // namespace tandem::registry
