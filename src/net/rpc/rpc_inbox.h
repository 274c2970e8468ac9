#pragma once
// RpcInbox: what happened on any number of streams, in order for each of them: kOpened at most once, frames, and
// kClosed once and last. Filled by the I/O threads of servers and clients, which must be gone before it; read by one
// thread.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_safety.h"
#include "net/rpc/rpc_stream.h"

namespace tandem::rpc {

struct RpcEvent {
  enum class Kind : uint8_t { kOpened, kFrame, kClosed };

  Kind kind = Kind::kOpened;
  std::shared_ptr<RpcStream> stream;
  std::string frame;  // of kFrame
  // Of kClosed. kCancelled: this side or the peer ended it on purpose. kNotFound: its machine says that no process
  // listens at the address. kUnavailable: not reached, refused in the handshake, or lost. kInvalidArgument: no common
  // version, or not such a server. kDeadline: did not open in time, or the peer took no bytes. kExhausted: a frame
  // beyond the peer's limit, or the server has no room for another stream.
  Error reason{ErrorCode::kInternal, {}};
};

class RpcInbox {
 public:
  // `on_event`: called on an I/O thread when the inbox was empty and no longer is: for a reader that waits on something
  // else (an eventfd, another queue's wake). It only wakes: it may not block, nor call a stream, whose lock is held.
  explicit RpcInbox(std::function<void()> on_event = {}) : on_event_(std::move(on_event)) {}

  // All there is, perhaps nothing. Never waits.
  std::vector<RpcEvent> drain();
  // As drain(), but waits up to `timeout_s` for the first event or a wake().
  std::vector<RpcEvent> wait_drain(double timeout_s);
  void wake();

  // By the I/O threads. Never refuses: each stream stops receiving at its own limit, and a server's streams keep their
  // place among max_streams until their kClosed is taken.
  void push(RpcEvent event);

 private:
  static std::vector<RpcEvent> give_out(std::deque<RpcEvent> events);

  const std::function<void()> on_event_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<RpcEvent> events_ GUARDED_BY(mutex_);
  bool is_woken_ GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::rpc
