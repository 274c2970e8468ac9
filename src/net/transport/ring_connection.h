#pragma once
// RingConnection: frames through two rings in shared memory, one per direction. The socket beside them carries the
// greeting with the rings' files, then wake-ups, one byte each; its end is the peer's end.

#include <memory>
#include <string>

#include "net/transport/framed_connection.h"
#include "net/transport/ring.h"

namespace tandem::transport {

class RingConnection final : public FramedConnection {
 public:
  // The socket is connected (unix, SOCK_SEQPACKET). Greets.
  static Result<std::unique_ptr<Connection>> connect(EventLoop& loop, const TransportLimits& limits, OwnedFd socket,
                                                     Bytes greeting, ConnectionHandler& handler);
  // Puts it into the lobby, or closes it when that is full.
  static void accept(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, Lobby& lobby);
  ~RingConnection() override { close(); }

  void on_io(uint32_t epoll_events) override;

 private:
  RingConnection(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, ConnectionHandler* handler,
                 Lobby* lobby);
  Status start();
  void flush() override;
  void fill() override;
  void release() override;
  Status receive_greeting();
  Status take_greeting(Bytes message, OwnedFd file);
  Status send_greeting(GreetingKind kind, Bytes owner_greeting) const;
  void take_wakeups();
  void wake_peer() const;

  OwnedFd socket_;
  RingRegion own_, peer_;
  RingWriter writer_;
  RingReader ring_reader_;
  bool is_peer_gone_ = false;
};

}  // namespace tandem::transport
