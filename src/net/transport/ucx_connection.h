#pragma once
// UcxConnection: frames through UCX's active messages, as a stream of numbered chunks of up to 1 MB.
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
#include "net/transport/ucx_worker.h"

namespace tandem::transport {

class UcxConnection final : public FramedConnection, private UcxReceiver {
 public:
  // To `where`, an address. Greets.
  static Result<std::unique_ptr<Connection>> connect(EventLoop& loop, const TransportLimits& limits,
                                                     std::shared_ptr<UcxWorker> worker, const ucp_ep_params_t& where,
                                                     Bytes greeting, ConnectionHandler& handler);
  // Of a peer's request. Puts it into the lobby.
  static void accept(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxWorker> worker,
                     const ucp_ep_params_t& where, Lobby& lobby);
  ~UcxConnection() override { close(); }

 private:
  UcxConnection(EventLoop& loop, const TransportLimits& limits, std::shared_ptr<UcxWorker> worker,
                ConnectionHandler* handler, Lobby* lobby)
      : FramedConnection(loop, limits, handler, lobby), worker_(std::move(worker)) {}
  void flush() override;
  void fill() override;
  void release() override;
  void continue_greeting() override;
  std::vector<uint64_t> take_sent() override;
  void on_message(const UcxHeader& header, UcxBytes bytes) override;
  void on_broken(const char* reason) override;
  Status take_greeting(Bytes message);
  void send_greeting(GreetingKind kind, Bytes owner_greeting);
  void give_credit();

  std::shared_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::optional<UcxBytes> greeting_;
  std::map<uint64_t, UcxBytes> inbox_;  // by number; bounded by the window
  uint64_t next_chunk_ = 0, credit_given_ = 0;
  size_t chunk_offset_ = 0;  // how far the next chunk is read
  uint64_t num_sent_ = 0, num_credited_ = 0;
  std::deque<std::pair<uint64_t, uint64_t>> sent_tags_;  // (the chunk that ended the frame, tag)
  std::optional<Error> broken_;
  bool is_refused_ = false;
};

}  // namespace tandem::transport
