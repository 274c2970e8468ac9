#pragma once
// ucx: UCX active messages, over TCP or, where there is hardware, verbs (TransportLimits::ucx_carriers). HOST is
// numeric; port 0 when listening: any free one. kUnavailable where UCX is not installed.

#include <memory>

#include "net/transport/transport.h"

namespace tandem::transport {

// Borrows the loop. UCX starts with the first listener or connection.
std::unique_ptr<Transport> make_ucx_transport(EventLoop& loop, const TransportLimits& limits);

}  // namespace tandem::transport
