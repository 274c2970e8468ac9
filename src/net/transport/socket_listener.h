#pragma once
// SocketListener: accepts on a listening socket and hands each connection to its transport, through a lobby.

#include <functional>
#include <string>
#include <utility>

#include "net/transport/framed_connection.h"
#include "net/transport/owned_fd.h"

namespace tandem::transport {

class SocketListener final : public Listener, public LoopClient {
 public:
  // Makes a connection of an accepted socket.
  using Accept = std::function<void(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, Lobby& lobby)>;
  struct Place {
    OwnedFd socket;  // listening, non-blocking
    std::string address;
    std::string path;  // removed with the listener; empty: none
  };

  static Result<std::unique_ptr<Listener>> start(EventLoop& loop, const TransportLimits& limits, Acceptor& acceptor,
                                                 Place place, Accept accept);
  ~SocketListener() override;

  std::string address() const override { return place_.address; }
  void on_io(uint32_t epoll_events) override;
  void on_timer() override;

 private:
  SocketListener(EventLoop& loop, const TransportLimits& limits, Acceptor& acceptor, Place place, Accept accept)
      : loop_(loop), limits_(limits), lobby_(limits, acceptor), place_(std::move(place)), accept_(std::move(accept)) {}

  EventLoop& loop_;
  const TransportLimits limits_;
  Lobby lobby_;
  const Place place_;
  const Accept accept_;
};

}  // namespace tandem::transport
