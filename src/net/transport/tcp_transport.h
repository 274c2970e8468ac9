#pragma once
// tcp: plain sockets. A payload goes from the sender's blocks to the socket, and from the socket to its landing, without
// a copy of our own between.

#include "net/transport/transport.h"

namespace tandem::transport {

class TcpTransport final : public Transport {
 public:
  // Borrows the loop.
  TcpTransport(EventLoop& loop, const TransportLimits& limits) : loop_(loop), limits_(limits) {}

  // `place` is HOST:PORT, HOST numeric; port 0 when listening: any free one.
  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override;
  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override;

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
};

}  // namespace tandem::transport
