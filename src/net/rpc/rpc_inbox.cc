#include "net/rpc/rpc_inbox.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace tandem::rpc {

std::vector<RpcEvent> RpcInbox::give_out(std::deque<RpcEvent> events) {
  for (const RpcEvent& event : events) {
    if (event.kind == RpcEvent::Kind::kFrame) event.stream->on_read(event.frame.size());
    if (event.kind == RpcEvent::Kind::kClosed) event.stream->on_closed_read();
  }
  return {std::make_move_iterator(events.begin()), std::make_move_iterator(events.end())};
}

std::vector<RpcEvent> RpcInbox::drain() {
  std::deque<RpcEvent> events;
  {
    Lock lock(mutex_);
    events.swap(events_);
  }
  return give_out(std::move(events));
}

std::vector<RpcEvent> RpcInbox::wait_drain(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  std::deque<RpcEvent> events;
  {
    Lock lock(mutex_);
    while (events_.empty() && !is_woken_) {
      const double left_s = std::chrono::duration<double>(end - Clock::now()).count();
      if (left_s <= 0) break;
      wake_.wait_for(mutex_, left_s);
    }
    is_woken_ = false;
    events.swap(events_);
  }
  return give_out(std::move(events));
}

void RpcInbox::wake() {
  {
    Lock lock(mutex_);
    is_woken_ = true;
  }
  wake_.notify_one();
}

void RpcInbox::push(RpcEvent event) {
  bool was_empty = false;
  {
    Lock lock(mutex_);
    was_empty = events_.empty();
    events_.push_back(std::move(event));
  }
  if (!was_empty) return;
  wake_.notify_one();
  if (on_event_) on_event_();
}

}  // namespace tandem::rpc
