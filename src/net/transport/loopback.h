#pragma once
// loop: connections inside one process, between the threads of any loops. The bytes go through the same rings as shm.

#include <memory>
#include <string>
#include <unordered_map>

#include "base/thread_safety.h"
#include "net/transport/transport.h"

namespace tandem::transport {

// Who listens under which name. One for all that shall reach each other; any thread.
class LoopbackHub {
 public:
  struct Entry;  // of a listener

 private:
  friend class LoopbackTransport;
  friend class LoopbackListener;
  Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_ GUARDED_BY(mutex_);
};

class LoopbackTransport final : public Transport {
 public:
  // Borrows both.
  LoopbackTransport(EventLoop& loop, const TransportLimits& limits, LoopbackHub& hub)
      : loop_(loop), limits_(limits), hub_(hub) {}

  // A listener's loop must outlive all who may connect to it.
  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override;
  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override;

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
  LoopbackHub& hub_;
};

}  // namespace tandem::transport
