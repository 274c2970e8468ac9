#pragma once
// ViewKeeper: what a gateway believes of the membership, from the registry's views and from its own live sessions.
// Pure: no clock, no socket.
//
// A record that goes is not a death: a node whose session lives only gets no new work. And when most records go at
// once, it is the registry that has lost them (its leases, or its disk), so the last view stays until it comes back.

#include <set>
#include <string>
#include <vector>

#include "cluster/registry/registry.h"

namespace tandem::registry {

class ViewKeeper {
 public:
  struct Change {
    std::vector<NodeRecord> added;       // connect
    std::vector<NodeRecord> changed;     // another process, role, state or address
    std::vector<std::string> retired;    // its record went while a session lives: no new work
    std::vector<std::string> removed;    // its record went and nothing is open: forget it
    std::map<std::string, std::string> config;  // when has_config
    uint64_t config_revision = 0;
    bool has_config = false;
  };

  // Takes a newer view in; an older one changes nothing.
  Change on_view(const View& view);
  // A live session outweighs a record that has gone.
  void on_session_opened(const std::string& id) { sessions_.insert(id); }
  // Returns true when the node is to be forgotten, its record having gone before.
  bool on_session_closed(const std::string& id);

  const std::map<std::string, NodeRecord>& nodes() const { return nodes_; }
  bool is_retired(const std::string& id) const { return retired_.contains(id); }
  uint64_t revision() const { return revision_; }
  uint64_t config_revision() const { return config_revision_; }
  uint64_t num_mass_losses() const { return num_mass_losses_; }  // views that were not believed

 private:
  bool is_mass_loss(const View& view) const;

  std::map<std::string, NodeRecord> nodes_;
  std::set<std::string> sessions_, retired_;
  uint64_t revision_ = 0, config_revision_ = 0, num_mass_losses_ = 0;
};

}  // namespace tandem::registry
