#pragma once
// FileRegistry: the registry of a cluster on one machine, a JSON file that a supervisor makes and all its processes
// share. Each change locks `PATH.lock`, reads, and replaces the file whole, so that a reader always sees one view and a
// process that dies in the middle changes nothing. Any thread, any number of processes.
//
// The file is input like any other: what is wrong with it is said by place, and nobody's last view is lost by it.

#include <string>

#include "cluster/registry/registry.h"

namespace tandem::registry {

class FileRegistry final : public Registry {
 public:
  explicit FileRegistry(std::string path) : path_(std::move(path)) {}

  Result<NodeRecord> join(const NodeRecord& node) override;
  Status set_state(const std::string& id, uint64_t incarnation, NodeState state) override;
  Status leave(const std::string& id, uint64_t incarnation) override;
  Result<uint64_t> flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) override;
  Result<uint64_t> set_config(const std::string& key, const std::string& value, uint64_t config_revision) override;
  Result<std::optional<View>> poll(uint64_t revision) override;

 private:
  // Runs `edit` on the file's view under the lock and writes the file when the revision has changed.
  template <class Edit>
  auto change(Edit edit) -> decltype(edit(std::declval<View&>()));
  Result<View> read() const;  // an absent file is an empty view
  Status write(const View& view) const;

  const std::string path_;
};

}  // namespace tandem::registry
