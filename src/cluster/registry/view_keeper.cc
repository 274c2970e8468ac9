#include "cluster/registry/view_keeper.h"

namespace tandem::registry {

// More than half of at least two nodes gone from one view to the next, none of which said that it leaves.
bool ViewKeeper::is_mass_loss(const View& view) const {
  size_t num_known = 0, num_lost = 0;
  for (const auto& [id, record] : nodes_) {
    if (retired_.contains(id) || record.state == NodeState::kDraining || record.state == NodeState::kLeft) continue;
    ++num_known;
    num_lost += view.nodes.contains(id) ? 0 : 1;
  }
  return num_lost >= 2 && 2 * num_lost > num_known;
}

ViewKeeper::Change ViewKeeper::on_view(const View& view) {
  Change change;
  if (view.revision <= revision_) return change;
  revision_ = view.revision;
  if (view.config_revision > config_revision_) {
    config_revision_ = change.config_revision = view.config_revision;
    change.config = view.config;
    change.has_config = true;
  }
  const bool keeps_all = is_mass_loss(view);
  num_mass_losses_ += keeps_all ? 1 : 0;
  for (const auto& [id, record] : view.nodes) {
    const auto known = nodes_.find(id);
    const bool was_retired = retired_.erase(id) > 0;
    if (known == nodes_.end()) {
      change.added.push_back(record);
    } else if (was_retired || known->second != record) {
      change.changed.push_back(record);
    }
    nodes_.insert_or_assign(id, record);
  }
  for (auto it = nodes_.begin(); !keeps_all && it != nodes_.end();) {
    const std::string& id = it->first;
    if (view.nodes.contains(id)) {
      ++it;
    } else if (sessions_.contains(id)) {
      if (retired_.insert(id).second) change.retired.push_back(id);
      ++it;
    } else {
      change.removed.push_back(id);
      it = nodes_.erase(it);
    }
  }
  return change;
}

bool ViewKeeper::on_session_closed(const std::string& id) {
  sessions_.erase(id);
  if (retired_.erase(id) == 0) return false;
  nodes_.erase(id);
  return true;
}

}  // namespace tandem::registry
