#include "net/transport/tcp_transport.h"

#include "net/transport/socket_address.h"
#include "net/transport/socket_listener.h"
#include "net/transport/tcp_connection.h"

namespace tandem::transport {
namespace {

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
  SocketAddress address;
  TRY_ASSIGN(OwnedFd socket, open_listening(place, address));
  return SocketListener::start(loop_, limits_, acceptor, {std::move(socket), "tcp:" + address_text(address), ""},
                               TcpConnection::accept);
}

Result<std::unique_ptr<Connection>> TcpTransport::connect(const std::string& place, Bytes greeting,
                                                          ConnectionHandler& handler) {
  TRY_ASSIGN(OwnedFd socket, open_connecting(place));
  return TcpConnection::connect(loop_, limits_, std::move(socket), greeting, handler);
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(EventLoop& loop, const TransportLimits& limits) {
  return std::make_unique<TcpTransport>(loop, limits);
}

}  // namespace tandem::transport
