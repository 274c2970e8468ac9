#pragma once
// UcxConnection: frames through UCX's active messages, as a stream of numbered chunks of up to 1 MB.
//
// It begins on a TCP socket of ours: greeting, admission, and where each side is in UCX. Strangers get no further, and
// never to UCX's own listener, which stops the process when somebody sends it bytes that it does not know (1.13). The
// socket stays, and ends with the peer.
//
// A chunk leaves from a buffer of ours and arrives in one of UCX's; neither end's blocks are ever in UCX's hands, so
// close() is a fence whatever UCX does. The sender has a window of chunks; the receiver gives credit for what it has
// taken, and a frame counts as sent when credit has come for its last chunk.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/transport/framed_connection.h"
#include "net/transport/owned_fd.h"
#include "net/transport/ucx_worker.h"

namespace tandem::transport {

class UcxConnection final : public FramedConnection, private UcxReceiver {
 public:
  // The socket is non-blocking and connected, or connecting. Greets.
  static Result<std::unique_ptr<Connection>> connect(EventLoop& loop, const TransportLimits& limits,
                                                     std::shared_ptr<UcxContexts> contexts, OwnedFd socket,
                                                     Bytes greeting, ConnectionHandler& handler);
  // Puts it into the lobby, or closes it when that is full.
  static void accept(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxContexts> contexts,
                     OwnedFd socket, Lobby& lobby);
  ~UcxConnection() override { close(); }

  void on_io(uint32_t epoll_events) override;

 private:
  UcxConnection(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxContexts> contexts, OwnedFd socket,
                ConnectionHandler* handler, Lobby* lobby);
  void flush() override;
  void fill() override;
  void release() override;
  std::vector<uint64_t> take_sent() override;
  void on_message(const UcxHeader& header, UcxBytes bytes) override;
  void on_broken(const char* reason) override;
  Status greet();
  Status take_greeting();
  Status start_worker();
  Status send_greeting(GreetingKind kind, Bytes owner_greeting) const;
  void give_credit();

  const std::shared_ptr<UcxContexts> contexts_;
  OwnedFd socket_;
  bool is_connecting_ = false;
  std::vector<std::byte> owner_greeting_, input_;  // while greeting
  size_t input_end_ = 0;
  std::shared_ptr<UcxWorker> worker_;
  std::map<uint64_t, UcxBytes> inbox_;  // by number; bounded by the window
  uint64_t next_chunk_ = 0, credit_given_ = 0;
  size_t chunk_offset_ = 0;  // how far the next chunk is read
  uint64_t num_sent_ = 0, num_credited_ = 0;
  std::deque<std::pair<uint64_t, uint64_t>> sent_tags_;  // (the chunk that ended the frame, tag)
  std::optional<Error> broken_;
};

}  // namespace tandem::transport
