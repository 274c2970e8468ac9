#include "net/transport/tcp_transport.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "net/transport/socket_address.h"
#include "net/transport/socket_listener.h"
#include "net/transport/tcp_connection.h"

namespace tandem::transport {
namespace {

Error unavailable(const std::string& place, const char* what) {
  return {ErrorCode::kUnavailable, place + ": " + what + ": " + strerror(errno)};
}

OwnedFd tcp_socket(const SocketAddress& address) {
  return OwnedFd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(EventLoop& loop, const TransportLimits& limits) : loop_(loop), limits_(limits) {}
  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override;
  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override;

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
};

Result<std::unique_ptr<Listener>> TcpTransport::listen(const std::string& place, Acceptor& acceptor) {
  TRY_ASSIGN(SocketAddress address, parse_address(place));
  OwnedFd socket = tcp_socket(address);
  const int on = 1;
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(socket.get(), address.get(), address.size) != 0 || ::listen(socket.get(), 128) != 0) {
    return unavailable(place, "listen");
  }
  address.size = sizeof address.storage;
  if (getsockname(socket.get(), address.get(), &address.size) != 0) return unavailable(place, "getsockname");
  return SocketListener::start(loop_, limits_, acceptor, {std::move(socket), "tcp:" + address_text(address), ""},
                               TcpConnection::accept);
}

Result<std::unique_ptr<Connection>> TcpTransport::connect(const std::string& place, Bytes greeting,
                                                          ConnectionHandler& handler) {
  TRY_ASSIGN(SocketAddress address, parse_address(place));
  OwnedFd socket = tcp_socket(address);
  if (!socket) return unavailable(place, "socket");
  if (::connect(socket.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) {
    return unavailable(place, "connect");
  }
  return TcpConnection::connect(loop_, limits_, std::move(socket), greeting, handler);
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(EventLoop& loop, const TransportLimits& limits) {
  return std::make_unique<TcpTransport>(loop, limits);
}

}  // namespace tandem::transport
