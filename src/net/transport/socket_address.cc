#include "net/transport/socket_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

namespace tandem::transport {
namespace {

Error unavailable(const std::string& place, const char* what) {
  return {ErrorCode::kUnavailable, place + ": " + what + ": " + strerror(errno)};
}

OwnedFd stream_socket(const SocketAddress& address) {
  return OwnedFd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

Result<SocketAddress> parse_address(const std::string& place) {
  const Error error = {ErrorCode::kInvalidArgument, "'" + place + "' is not HOST:PORT with a numeric host"};
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos) return error;
  std::string host = place.substr(0, colon);
  const std::string port = place.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || port.empty() || getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return error;
  SocketAddress address;
  memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

std::string address_text(const SocketAddress& address) {
  char host[INET6_ADDRSTRLEN] = {};
  if (address.storage.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
    return "[" + std::string(host) + "]:" + std::to_string(ntohs(in6.sin6_port));
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address.storage);
  inet_ntop(AF_INET, &in4.sin_addr, host, sizeof host);
  return std::string(host) + ":" + std::to_string(ntohs(in4.sin_port));
}

Result<OwnedFd> open_listening(const std::string& place, SocketAddress& address) {
  TRY_ASSIGN(address, parse_address(place));
  OwnedFd socket = stream_socket(address);
  const int on = 1;
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(socket.get(), address.get(), address.size) != 0 || listen(socket.get(), 128) != 0) {
    return unavailable(place, "listen");
  }
  address.size = sizeof address.storage;
  if (getsockname(socket.get(), address.get(), &address.size) != 0) return unavailable(place, "getsockname");
  return socket;
}

Result<OwnedFd> open_connecting(const std::string& place) {
  TRY_ASSIGN(SocketAddress address, parse_address(place));
  OwnedFd socket = stream_socket(address);
  if (!socket) return unavailable(place, "socket");
  if (connect(socket.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) {
    return unavailable(place, "connect");
  }
  return socket;
}

}  // namespace tandem::transport
