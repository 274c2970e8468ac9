#pragma once
// SessionServer: a node's side of its gateways' streams. Frames become messages; a gateway is known by its Hello, and a
// stream that does not begin with one, or says what no gateway says, is closed.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cluster/handoff/messages.h"
#include "net/rpc/rpc_server.h"
#include "net/transport/event_loop.h"

namespace tandem::node {

class SessionOwner {
 public:
  virtual void on_session_message(const std::string& gateway, uint64_t stream,
                                  const handoff::SessionMessage& message) = 0;
  virtual void on_session_closed(const std::string& gateway, uint64_t stream) = 0;

 protected:
  ~SessionOwner() = default;
};

// The loop's thread, but for port(). Destroyed after the loop has stopped.
class SessionServer {
 public:
  static Result<std::unique_ptr<SessionServer>> start(transport::EventLoop& loop, const std::string& host,
                                                      uint16_t port, const rpc::RpcOptions& options,
                                                      SessionOwner& owner);

  uint16_t port() const { return server_->port(); }
  // A gateway that is too slow to take its messages loses the stream: its protocol knows that case.
  void send(uint64_t stream, const handoff::SessionMessage& message);
  void close(uint64_t stream);
  void on_tick(int64_t now_ns);  // closes streams that greet nobody

 private:
  struct Stream {
    std::shared_ptr<rpc::RpcStream> rpc;
    std::string gateway;  // empty before its Hello
    int64_t opened_at_ns = 0;
  };
  SessionServer(transport::EventLoop& loop, SessionOwner& owner);
  void take_events();
  void on_frame(Stream& stream, const std::string& frame);

  transport::EventLoop& loop_;
  SessionOwner& owner_;
  std::map<uint64_t, Stream> streams_;  // by connection id
  rpc::RpcInbox inbox_;
  std::unique_ptr<rpc::RpcServer> server_;  // gone before its inbox
};

}  // namespace tandem::node
