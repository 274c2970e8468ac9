#include "net/transport/loopback.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "net/transport/ring_connection.h"

namespace tandem::transport {

struct LoopbackHub::Entry {
  EventLoop& loop;
  class LoopbackListener* listener;  // null once it is gone; the loop's thread only
};

class LoopbackListener final : public Listener {
 public:
  LoopbackListener(EventLoop& loop, const TransportLimits& limits, Acceptor& acceptor, LoopbackHub& hub,
                   std::string name)
      : loop_(loop), limits_(limits), lobby_(limits, acceptor), hub_(hub), name_(std::move(name)) {}
  ~LoopbackListener() override {
    if (entry_ == nullptr) return;
    entry_->listener = nullptr;
    Lock lock(hub_.mutex_);
    hub_.entries_.erase(name_);
  }

  bool start() {
    auto entry = std::make_shared<LoopbackHub::Entry>(LoopbackHub::Entry{loop_, this});
    Lock lock(hub_.mutex_);
    if (!hub_.entries_.emplace(name_, entry).second) return false;
    entry_ = std::move(entry);
    return true;
  }
  std::string address() const override { return "loop:" + name_; }
  void adopt(OwnedFd socket) { RingConnection::accept(loop_, limits_, std::move(socket), lobby_); }

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
  Lobby lobby_;
  LoopbackHub& hub_;
  const std::string name_;
  std::shared_ptr<LoopbackHub::Entry> entry_;
};

Result<std::unique_ptr<Listener>> LoopbackTransport::listen(const std::string& place, Acceptor& acceptor) {
  auto listener = std::make_unique<LoopbackListener>(loop_, limits_, acceptor, hub_, place);
  if (!listener->start()) return Error{ErrorCode::kUnavailable, place + ": somebody listens there"};
  return std::unique_ptr<Listener>(std::move(listener));
}

Result<std::unique_ptr<Connection>> LoopbackTransport::connect(const std::string& place, Bytes greeting,
                                                               ConnectionHandler& handler) {
  std::shared_ptr<LoopbackHub::Entry> entry;
  {
    Lock lock(hub_.mutex_);
    const auto found = hub_.entries_.find(place);
    if (found == hub_.entries_.end()) return Error{ErrorCode::kUnavailable, place + ": nobody listens there"};
    entry = found->second;
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) != 0) {
    return Error{ErrorCode::kExhausted, std::string("socketpair: ") + strerror(errno)};
  }
  OwnedFd ours(sockets[0]);
  auto theirs = std::make_shared<OwnedFd>(sockets[1]);
  entry->loop.post([entry, theirs] {
    if (entry->listener != nullptr) entry->listener->adopt(std::move(*theirs));
    theirs->reset();
  });
  return RingConnection::connect(loop_, limits_, std::move(ours), greeting, handler);
}

}  // namespace tandem::transport
