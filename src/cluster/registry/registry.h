#pragma once
// Registry: who is a member, in which role, and the cluster's versioned configuration. Never load, never requests:
// those travel on the session streams. Every change has a revision of its own; who watches sees whole views, in order.
//
// Its loss is nobody's death: everyone keeps the last view (view_keeper.h).

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "cluster/handoff/messages.h"

namespace tandem::registry {

enum class NodeState : uint8_t { kStarting, kReady, kDraining, kLeft };

struct NodeRecord {
  std::string id;
  uint64_t incarnation = 0;   // of the process that wrote it
  handoff::Role role = handoff::Role::kMixed;
  uint64_t role_epoch = 0;    // revision at which the role was set last
  NodeState state = NodeState::kStarting;
  std::string control;        // where gateways connect
  std::string data;           // where peers connect, as a transport's address
  uint64_t pid = 0;           // of the process, on its machine; 0: not said
  std::string metrics = {};   // URL of its own metrics; empty: it has none
  bool operator==(const NodeRecord&) const = default;
};

struct View {
  uint64_t revision = 0;
  std::map<std::string, NodeRecord> nodes;
  uint64_t config_revision = 0;               // of the newest change of `config`
  std::map<std::string, std::string> config;  // TOML keys to values
};

class Registry {
 public:
  virtual ~Registry() = default;

  // Announces a node; its record's role and role_epoch are taken only when the registry knows none. Returns the record
  // as it stands.
  virtual Result<NodeRecord> join(const NodeRecord& node) = 0;
  // kNotFound: unknown, or another process has the name.
  virtual Status set_state(const std::string& id, uint64_t incarnation, NodeState state) = 0;
  virtual Status leave(const std::string& id, uint64_t incarnation) = 0;
  // One transaction: fails with kUnavailable when the role has changed since `role_epoch`, and with kInvalidArgument
  // when the node is the last ready one of its role. Returns the new epoch.
  virtual Result<uint64_t> flip_role(const std::string& id, uint64_t role_epoch, handoff::Role role) = 0;
  // kUnavailable when the configuration is no longer at `config_revision`. Returns the new one.
  virtual Result<uint64_t> set_config(const std::string& key, const std::string& value, uint64_t config_revision) = 0;
  // The newest view if it is newer than `revision`. kUnavailable: the registry cannot be reached.
  virtual Result<std::optional<View>> poll(uint64_t revision) = 0;
  // Whether all calls are quick, whatever happens to others: then a loop that must not stand still may call.
  virtual bool is_local() const { return true; }
};

// By word: prefill, decode, mixed; starting, ready, draining, left.
const char* role_name(handoff::Role role);
std::optional<handoff::Role> role_of(const std::string& name);
const char* state_name(NodeState state);
std::optional<NodeState> state_of(const std::string& name);

// Why this flip may not happen in this view; empty: it may.
std::string flip_refusal(const View& view, const std::string& id, handoff::Role role);

}  // namespace tandem::registry
