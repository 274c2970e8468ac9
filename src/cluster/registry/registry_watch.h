#pragma once
// RegistryWatch: a thread that polls a registry and keeps the newest view for another to take. A registry that cannot
// be reached costs nothing but news.

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "base/thread_safety.h"
#include "cluster/registry/registry.h"

namespace tandem::registry {

class RegistryWatch {
 public:
  // `on_view`: called on this thread when there is a view to take; it only wakes. The registry outlives the watch.
  RegistryWatch(Registry& registry, double poll_s, std::function<void()> on_view);
  ~RegistryWatch() { stop(); }

  std::optional<View> take();  // any thread
  void poll_now();             // any thread: does not wait for it
  bool is_reached() const { return is_reached_; }  // by the last poll; any thread
  void stop();

 private:
  void run();
  Status poll();

  Registry& registry_;
  const double poll_s_;
  const std::function<void()> on_view_;
  Mutex mutex_;
  CondVar wake_;
  std::optional<View> view_ GUARDED_BY(mutex_);
  bool is_woken_ GUARDED_BY(mutex_) = false;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  uint64_t revision_ = 0;  // of the thread
  std::atomic<bool> is_reached_ = true;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace tandem::registry
