#pragma once
// TcpConnection: frames through a TCP socket, sent from and received into their places.

#include <memory>
#include <string>
#include <vector>

#include "net/transport/framed_connection.h"
#include "net/transport/owned_fd.h"

namespace tandem::transport {

class TcpConnection final : public FramedConnection {
 public:
  // The socket is non-blocking and connected, or connecting. Greets.
  static Result<std::unique_ptr<Connection>> connect(EventLoop& loop, const TransportLimits& limits, OwnedFd socket,
                                                     Bytes greeting, ConnectionHandler& handler);
  // Puts it into the lobby, or closes it when that is full.
  static void accept(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, Lobby& lobby);
  ~TcpConnection() override { close(); }

  void on_io(uint32_t epoll_events) override;

 private:
  TcpConnection(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, ConnectionHandler* handler,
                Lobby* lobby);
  void flush() override;
  void fill() override;
  void release() override;
  Status start(uint32_t epoll_events);
  void watch(uint32_t epoll_events);
  Status greet();
  Status send_greeting(GreetingKind kind, Bytes owner_greeting) const;
  Status take_greeting();
  bool feed_input();
  enum class Read { kMore, kNoMore, kFailed };
  Read read_some();

  OwnedFd socket_;
  uint32_t watched_events_ = 0;
  bool is_connecting_ = false;
  bool is_blocked_ = false;  // the socket takes no more now
  std::vector<std::byte> owner_greeting_;
  std::unique_ptr<std::byte[]> input_;  // read and not yet taken: [input_begin_, input_end_)
  size_t input_begin_ = 0, input_end_ = 0;
};

}  // namespace tandem::transport
