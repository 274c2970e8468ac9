#include "net/transport/event_loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"

namespace tandem::transport {

Result<std::unique_ptr<EventLoop>> EventLoop::create(const Clock& clock) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return Error{ErrorCode::kExhausted, std::string("epoll_create1: ") + strerror(errno)};
  const int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) {
    const std::string reason = strerror(errno);
    close(epoll_fd);
    return Error{ErrorCode::kExhausted, "eventfd: " + reason};
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint32_t>(event_fd);
  TANDEM_CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &event) == 0);
  return std::unique_ptr<EventLoop>(new EventLoop(clock, epoll_fd, event_fd));
}

EventLoop::EventLoop(const Clock& clock, int epoll_fd, int event_fd)
    : clock_(clock), epoll_fd_(epoll_fd), event_fd_(event_fd) {}

EventLoop::~EventLoop() {
  retired_.clear();
  close(event_fd_);
  close(epoll_fd_);
}

Status EventLoop::watch(int fd, uint32_t epoll_events, LoopClient& client) {
  const auto found = watches_.find(fd);
  const bool is_new = found == watches_.end();
  const uint32_t generation = is_new ? ++generation_ : found->second.generation;
  epoll_event event = {};
  event.events = epoll_events;
  event.data.u64 = uint64_t{generation} << 32 | static_cast<uint32_t>(fd);
  if (epoll_ctl(epoll_fd_, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) != 0) {
    return Error{ErrorCode::kExhausted, std::string("epoll_ctl: ") + strerror(errno)};
  }
  watches_[fd] = {&client, generation};
  return Done{};
}

void EventLoop::unwatch(int fd) {
  if (watches_.erase(fd) > 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::defer(LoopClient& client) {
  if (std::find(tasks_.begin(), tasks_.end(), &client) == tasks_.end()) tasks_.push_back(&client);
}

void EventLoop::set_timer(LoopClient& client, int64_t at_ns) {
  clear_timer(client);
  timers_.insert({at_ns, &client});
  timer_times_[&client] = at_ns;
}

void EventLoop::clear_timer(LoopClient& client) {
  const auto found = timer_times_.find(&client);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, &client});
  timer_times_.erase(found);
}

void EventLoop::forget(LoopClient& client) {
  clear_timer(client);
  std::replace(tasks_.begin(), tasks_.end(), &client, static_cast<LoopClient*>(nullptr));
}

void EventLoop::post(std::function<void()> work) {
  bool was_empty = false;
  {
    Lock lock(mutex_);
    was_empty = posted_.empty();
    posted_.push_back(std::move(work));
  }
  const uint64_t one = 1;
  if (was_empty && write(event_fd_, &one, sizeof one) < 0) TANDEM_CHECK(errno == EAGAIN);
}

void EventLoop::stop() {
  post([this] { is_stopped_ = true; });
}

int EventLoop::wait_ms(int timeout_ms) const {
  if (!tasks_.empty() || !retired_.empty()) return 0;
  if (timers_.empty()) return timeout_ms;
  // Rounded up: a wait that ends just before the timer would only be another wake-up.
  const int64_t left_ms = std::clamp<int64_t>((timers_.begin()->first - now_ns() + 999'999) / 1'000'000, 0,
                                              std::numeric_limits<int>::max());
  return timeout_ms < 0 ? static_cast<int>(left_ms) : static_cast<int>(std::min<int64_t>(left_ms, timeout_ms));
}

void EventLoop::run_once(int timeout_ms) {
  epoll_event events[64];
  const int count = epoll_wait(epoll_fd_, events, 64, wait_ms(timeout_ms));
  ++num_wakeups_;
  for (int i = 0; i < count; ++i) dispatch(events[i].data.u64, events[i].events);
  run_due_timers();
  run_tasks();
  std::exchange(retired_, {}).clear();
}

void EventLoop::run() {
  is_stopped_ = false;
  while (!is_stopped_) run_once(-1);
}

void EventLoop::dispatch(uint64_t key, uint32_t events) {
  const int fd = static_cast<int>(static_cast<uint32_t>(key));
  if (fd == event_fd_) return run_posted();
  const auto found = watches_.find(fd);
  if (found != watches_.end() && found->second.generation == key >> 32) found->second.client->on_io(events);
}

void EventLoop::run_due_timers() {
  if (timers_.empty()) return;
  const int64_t now = now_ns();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    LoopClient& client = *timers_.begin()->second;
    clear_timer(client);
    client.on_timer();
  }
}

// One round: a task that defers itself again has its turn after the others' input.
void EventLoop::run_tasks() {
  const size_t count = tasks_.size();
  for (size_t i = 0; i < count; ++i) {
    if (LoopClient* client = std::exchange(tasks_[i], nullptr)) client->on_task();
  }
  tasks_.erase(tasks_.begin(), tasks_.begin() + static_cast<ptrdiff_t>(count));
}

void EventLoop::run_posted() {
  uint64_t count = 0;
  while (read(event_fd_, &count, sizeof count) > 0) {
  }
  std::vector<std::function<void()>> work;
  {
    Lock lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& item : work) item();
}

}  // namespace tandem::transport
