#pragma once
// NodeStreams: the control streams to nodes, as the policy names them (node and number) and as net/rpc does. One
// thread.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cluster/handoff/messages.h"
#include "net/rpc/rpc_client.h"
#include "net/rpc/rpc_options.h"

namespace tandem::gateway {

class NodeStreams {
 public:
  struct Key {
    std::string node;
    uint64_t stream = 0;  // the policy's number
  };

  // Its events are in `inbox`, which outlives it. Errors: RpcClient::open().
  static Result<NodeStreams> open(const rpc::RpcOptions& options, rpc::RpcInbox& inbox);

  // Replaces the node's stream, if it has one.
  void connect(const Key& key, const std::string& address);
  // What is queued still goes out.
  void close(const Key& key);
  // False: the stream is no more, or takes nothing in; it has been given up then. A message that cannot be written is
  // left out.
  bool send(const Key& key, const handoff::SessionMessage& message);
  // The policy's name of an event's stream; nothing when it was closed here or replaced.
  std::optional<Key> find(const rpc::RpcStream& stream) const;
  void forget(const Key& key);
  void close_all();

 private:
  struct Open {
    uint64_t stream = 0;
    std::shared_ptr<rpc::RpcStream> rpc;
  };
  explicit NodeStreams(std::unique_ptr<rpc::RpcClient> client) : client_(std::move(client)) {}

  std::unique_ptr<rpc::RpcClient> client_;
  std::map<std::string, Open> open_;               // by node
  std::map<uint64_t, std::string> by_connection_;  // connection id to node
};

}  // namespace tandem::gateway
