#pragma once
// How a connection over a stream socket begins, on both sides: connected, greeted, answered. One thread; nothing waits.

#include "net/transport/frame.h"

namespace tandem::transport {

constexpr size_t kMaxCarrierBytes = 8 << 10;

// A host that has gone without a word is noticed after about the stall time-out, with or without bytes under way.
void set_stream_options(int socket, const TransportLimits& limits);

// Once a connecting socket is writable: kUnavailable when it did not connect.
Status check_connected(int socket);

// The two lengths are filled in. To be the first bytes on the socket, which always fit its buffer.
Status send_stream_greeting(int socket, Greeting greeting, Bytes owner_greeting, Bytes carrier);

// Reads on behind input[0, end). The size of the greeting with all its parts once it is whole and of a kind that this
// side expects, 0 before; more may be behind it. kUnavailable: gone, or it refused us; kCorrupt: not a greeting.
Result<size_t> receive_stream_greeting(int socket, MutableBytes input, size_t& end, bool is_accepting,
                                       const TransportLimits& limits);

}  // namespace tandem::transport
