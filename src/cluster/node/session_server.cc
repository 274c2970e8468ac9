#include "cluster/node/session_server.h"

#include <utility>

#include "base/log.h"
#include "cluster/wire/session_codec.h"

namespace tandem::node {
namespace {

constexpr int64_t kHelloNs = 5'000'000'000;

}  // namespace

SessionServer::SessionServer(transport::EventLoop& loop, SessionOwner& owner)
    : loop_(loop), owner_(owner), inbox_([this] { loop_.post([this] { take_events(); }); }) {}

Result<std::unique_ptr<SessionServer>> SessionServer::start(transport::EventLoop& loop, const std::string& host,
                                                            uint16_t port, const rpc::RpcOptions& options,
                                                            SessionOwner& owner) {
  std::unique_ptr<SessionServer> made(new SessionServer(loop, owner));
  TRY_ASSIGN(made->server_, rpc::RpcServer::listen(host, port, options, made->inbox_));
  return made;
}

void SessionServer::take_events() {
  for (rpc::RpcEvent& event : inbox_.drain()) {
    const uint64_t id = event.stream->connection_id();
    switch (event.kind) {
      case rpc::RpcEvent::Kind::kOpened: streams_[id] = {event.stream, {}, loop_.now_ns()}; break;
      case rpc::RpcEvent::Kind::kFrame:
        if (const auto it = streams_.find(id); it != streams_.end()) on_frame(it->second, event.frame);
        break;
      case rpc::RpcEvent::Kind::kClosed:
        if (auto closed = streams_.extract(id); closed && !closed.mapped().gateway.empty()) {
          log_info("cluster/node", "a gateway's stream ended",
                   {{"gateway", closed.mapped().gateway}, {"why", event.reason.message}});
          owner_.on_session_closed(closed.mapped().gateway, id);
        }
        break;
    }
  }
}

void SessionServer::on_frame(Stream& stream, const std::string& frame) {
  auto message = wire::decode_session(frame);
  if (!message) {
    log_warning("cluster/node", "not a session message",
                {{"peer", stream.rpc->peer()}, {"why", message.error().message}});
    return stream.rpc->abort();
  }
  if (!*message) return;  // a kind of the next version
  if (const auto* hello = std::get_if<handoff::Hello>(&**message)) {
    if (!stream.gateway.empty() && stream.gateway != hello->from.id) return stream.rpc->abort();
    stream.gateway = hello->from.id;
  }
  if (stream.gateway.empty()) return stream.rpc->abort();
  owner_.on_session_message(stream.gateway, stream.rpc->connection_id(), **message);
}

void SessionServer::send(uint64_t stream, const handoff::SessionMessage& message) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  auto frame = wire::encode_session(message);
  if (!frame) {
    log_error("cluster/node", "a message has no frame", {{"why", frame.error().message}});
    return it->second.rpc->abort();
  }
  const rpc::SendResult sent = it->second.rpc->send(*frame);
  if (sent == rpc::SendResult::kQueued || sent == rpc::SendResult::kClosed) return;
  log_warning("cluster/node", "a gateway reads too slowly", {{"gateway", it->second.gateway}});
  it->second.rpc->abort();
}

void SessionServer::close(uint64_t stream) {
  if (const auto it = streams_.find(stream); it != streams_.end()) it->second.rpc->close();
}

void SessionServer::on_tick(int64_t now_ns) {
  for (auto& [id, stream] : streams_) {
    if (stream.gateway.empty() && now_ns - stream.opened_at_ns > kHelloNs) stream.rpc->abort();
  }
}

}  // namespace tandem::node
