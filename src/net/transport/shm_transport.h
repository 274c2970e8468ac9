#pragma once
// shm: a ring in shared memory between processes of one host and one user; they meet at a unix socket. The socket is
// made for this user alone and removed with its listener. One that a dead process left is replaced; one that is
// listened on is kUnavailable.

#include <memory>

#include "net/transport/transport.h"

namespace tandem::transport {

// Borrows the loop.
std::unique_ptr<Transport> make_shm_transport(EventLoop& loop, const TransportLimits& limits);

}  // namespace tandem::transport
