#include "cluster/gateway/node_streams.h"

#include <utility>

#include "base/log.h"
#include "cluster/wire/session_codec.h"

namespace tandem::gateway {

Result<NodeStreams> NodeStreams::open(const rpc::RpcOptions& options, rpc::RpcInbox& inbox) {
  TRY_ASSIGN(auto client, rpc::RpcClient::open(options, inbox));
  return NodeStreams(std::move(client));
}

void NodeStreams::connect(const Key& key, const std::string& address) {
  const auto old = open_.find(key.node);
  if (old != open_.end()) close({key.node, old->second.stream});
  Open open{key.stream, client_->connect(address)};
  by_connection_.emplace(open.rpc->connection_id(), key.node);
  open_.emplace(key.node, std::move(open));
}

void NodeStreams::close(const Key& key) {
  const auto it = open_.find(key.node);
  if (it == open_.end() || it->second.stream != key.stream) return;
  it->second.rpc->close();
  forget(key);
}

void NodeStreams::forget(const Key& key) {
  const auto it = open_.find(key.node);
  if (it == open_.end() || it->second.stream != key.stream) return;
  by_connection_.erase(it->second.rpc->connection_id());
  open_.erase(it);
}

bool NodeStreams::send(const Key& key, const handoff::SessionMessage& message) {
  const auto it = open_.find(key.node);
  if (it == open_.end() || it->second.stream != key.stream) return false;
  auto frame = wire::encode_session(message);
  if (!frame) {
    log_error("cluster/gateway", "a message cannot be written", {{"node", key.node}, {"error", frame.error().message}});
    return true;
  }
  const rpc::SendResult sent = it->second.rpc->send(*frame);
  if (sent == rpc::SendResult::kQueued) return true;
  if (sent != rpc::SendResult::kClosed) {
    log_warning("cluster/gateway", "a node takes no messages", {{"node", key.node}});
  }
  it->second.rpc->abort();
  forget(key);
  return false;
}

std::optional<NodeStreams::Key> NodeStreams::find(const rpc::RpcStream& stream) const {
  const auto node = by_connection_.find(stream.connection_id());
  if (node == by_connection_.end()) return std::nullopt;
  return Key{node->second, open_.at(node->second).stream};
}

void NodeStreams::close_all() {
  for (const auto& [node, open] : open_) open.rpc->close();
  open_.clear();
  by_connection_.clear();
}

}  // namespace tandem::gateway
