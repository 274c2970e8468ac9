#pragma once
// tcp: plain sockets. A payload goes from the sender's blocks to the socket, and from the socket to its placement; no
// copy of ours is between. HOST is numeric; port 0 when listening: any free one.

#include <memory>

#include "net/transport/transport.h"

namespace tandem::transport {

// Borrows the loop.
std::unique_ptr<Transport> make_tcp_transport(EventLoop& loop, const TransportLimits& limits);

}  // namespace tandem::transport
