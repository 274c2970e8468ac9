#pragma once
// StateFolder: where the processes of one cluster on this machine meet: registry, sockets, logs.

#include <string>

#include "base/options.h"
#include "base/result.h"

namespace tandem::apps {

class StateFolder {
 public:
  // $XDG_STATE_HOME/tandem/CLUSTER, else ~/.local/state/tandem/CLUSTER; made when it is not there, for this user only.
  // kInvalidArgument: no name for a folder.
  static Result<StateFolder> open(const std::string& cluster);

  std::string registry() const { return path_ + "/registry.json"; }
  std::string log(const std::string& process) const { return path_ + "/" + process + ".log"; }
  std::string socket(const std::string& node) const { return path_ + "/" + node + ".sock"; }
  std::string gateway_address() const { return path_ + "/gateway.url"; }  // of the gateway that `up` runs
  std::string lock() const { return path_ + "/up.lock"; }

 private:
  explicit StateFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Letters, digits, '-', '_' and '.', not first: what names of clusters and nodes are made of, as files are called so.
Status check_name(const std::string& what, const std::string& name);

// The file's text without space at its ends. kNotFound; kInvalidArgument: empty, or more than 4 KiB.
Result<std::string> read_short_file(const std::string& path);

// What --admin-key-file holds; empty without the option.
Result<std::string> admin_key(const OptionValues& values);

}  // namespace tandem::apps
