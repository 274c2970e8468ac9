#pragma once
// HOST:PORT as the transports between hosts take it. HOST is numeric, [..] around IPv6: looking up a name may take
// seconds, and is the registry's business.

#include <sys/socket.h>

#include <string>

#include "base/result.h"
#include "net/transport/owned_fd.h"

namespace tandem::transport {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Result<SocketAddress> parse_address(const std::string& place);
std::string address_text(const SocketAddress& address);  // what parse_address() takes

// Non-blocking stream sockets. kUnavailable, saying of which place.
// Listening; `address` becomes the one that was chosen.
Result<OwnedFd> open_listening(const std::string& place, SocketAddress& address);
// Connecting, or connected.
Result<OwnedFd> open_connecting(const std::string& place);

}  // namespace tandem::transport
