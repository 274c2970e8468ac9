#pragma once
// EventLoop: epoll, timers and a mailbox for one thread. Sleeps until something happens; an idle loop costs nothing.
//
// Everything but post() and stop() belongs to the thread that runs it. Clients are borrowed: each calls forget() before
// it dies. Source: epoll(7), eventfd(2).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_safety.h"

namespace tandem::transport {

// What the loop calls. A call may change what is watched, also for others.
class LoopClient {
 public:
  virtual void on_io(uint32_t epoll_events) { (void)epoll_events; }
  virtual void on_task() {}
  virtual void on_timer() {}

 protected:
  ~LoopClient() = default;
};

class EventLoop {
 public:
  // Borrows the clock, which rules the timers. kExhausted when the process has no file descriptors left.
  static Result<std::unique_ptr<EventLoop>> create(const Clock& clock);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  int64_t now_ns() const { return clock_.now_ns(); }

  // Calls client.on_io for these events (level-triggered), from now on; a second call for the fd replaces the first.
  Status watch(int fd, uint32_t epoll_events, LoopClient& client);
  void unwatch(int fd);  // before the fd is closed
  // One on_task() soon, before the loop sleeps; asked for twice, it still comes once.
  void defer(LoopClient& client);
  // One on_timer() when the clock has reached `at_ns`; replaces the client's earlier time.
  void set_timer(LoopClient& client, int64_t at_ns);
  void clear_timer(LoopClient& client);
  void forget(LoopClient& client);  // its tasks and its timer

  // Lets an object die once no call into it is on the stack.
  void retire(std::shared_ptr<void> object) { retired_.push_back(std::move(object)); }

  // Any thread: runs `work` on the loop's thread. What is posted after the last run dies with the loop, unrun.
  void post(std::function<void()> work);
  void stop();  // any thread: run() returns

  // Waits for up to `timeout_ms` (-1: for ever), then runs what is due.
  void run_once(int timeout_ms);
  void run();

  uint64_t num_wakeups() const { return num_wakeups_; }  // times that waiting ended
  int fd() const { return epoll_fd_; }                   // readable when run_once() has something to do, timers apart

 private:
  EventLoop(const Clock& clock, int epoll_fd, int event_fd);
  int wait_ms(int timeout_ms) const;
  void dispatch(uint64_t key, uint32_t events);
  void run_due_timers();
  void run_tasks();
  void run_posted();

  struct Watch {
    LoopClient* client = nullptr;
    uint32_t generation = 0;  // an event of an fd that was closed and opened again meanwhile is not the new one's
  };
  const Clock& clock_;
  const int epoll_fd_, event_fd_;
  uint32_t generation_ = 0;
  uint64_t num_wakeups_ = 0;
  bool is_stopped_ = false;
  std::unordered_map<int, Watch> watches_;
  std::vector<LoopClient*> tasks_;
  std::set<std::pair<int64_t, LoopClient*>> timers_;
  std::unordered_map<LoopClient*, int64_t> timer_times_;
  std::vector<std::shared_ptr<void>> retired_;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ GUARDED_BY(mutex_);
};

}  // namespace tandem::transport
