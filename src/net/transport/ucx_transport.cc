#include "net/transport/ucx_transport.h"

#include <utility>

#include "net/transport/socket_address.h"
#include "net/transport/socket_listener.h"
#include "net/transport/ucx_connection.h"

namespace tandem::transport {
namespace {

class UcxTransport final : public Transport {
 public:
  UcxTransport(EventLoop& loop, const TransportLimits& limits)
      : loop_(loop), limits_(limits), contexts_(std::make_shared<UcxContexts>(limits.ucx_carriers)) {}

  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override {
    TRY(UcxLibrary::open());  // say so now, not to the first peer
    SocketAddress address;
    TRY_ASSIGN(OwnedFd socket, open_listening(place, address));
    const auto accept = [contexts = contexts_](EventLoop& loop, const TransportLimits& limits, OwnedFd accepted,
                                               Lobby& lobby) {
      UcxConnection::accept(loop, limits, contexts, std::move(accepted), lobby);
    };
    return SocketListener::start(loop_, limits_, acceptor, {std::move(socket), "ucx:" + address_text(address), ""},
                                 accept);
  }

  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override {
    TRY(UcxLibrary::open());
    TRY_ASSIGN(OwnedFd socket, open_connecting(place));
    return UcxConnection::connect(loop_, limits_, contexts_, std::move(socket), greeting, handler);
  }

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
  const std::shared_ptr<UcxContexts> contexts_;
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(EventLoop& loop, const TransportLimits& limits) {
  return std::make_unique<UcxTransport>(loop, limits);
}

}  // namespace tandem::transport
