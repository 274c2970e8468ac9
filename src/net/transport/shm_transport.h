#pragma once
// shm: a ring in shared memory between processes of one host and one user; they meet at a unix socket.

#include "net/transport/transport.h"

namespace tandem::transport {

class ShmTransport final : public Transport {
 public:
  // Borrows the loop.
  ShmTransport(EventLoop& loop, const TransportLimits& limits) : loop_(loop), limits_(limits) {}

  // `place` is a path; the socket is made there, for this user alone, and removed with the listener. A socket that a
  // dead process left is replaced; one that is listened on is kUnavailable.
  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override;
  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override;

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
};

}  // namespace tandem::transport
