#pragma once
// BoundedQueue<T>: the only way between threads. Many producers, one consumer; never grows past its limit.

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "base/thread_safety.h"

namespace tandem {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t limit) : limit_(limit) {}

  // False when full or closed: the caller answers with back-pressure, at once.
  bool try_push(T item) {
    {
      Lock lock(mutex_);
      if (is_closed_ || items_.size() >= limit_) return false;
      items_.push_back(std::move(item));
    }
    wake_.notify_one();
    return true;
  }

  // Takes all there is, perhaps nothing. Never waits.
  std::vector<T> drain() {
    Lock lock(mutex_);
    return take_all();
  }

  // As drain(), but waits up to `timeout_s` for the first item, a wake() or close().
  std::vector<T> wait_drain(double timeout_s) {
    Lock lock(mutex_);
    if (items_.empty() && !is_closed_ && !is_woken_) wake_.wait_for(mutex_, timeout_s);
    is_woken_ = false;
    return take_all();
  }

  void wake() {
    {
      Lock lock(mutex_);
      is_woken_ = true;
    }
    wake_.notify_one();
  }

  // No item goes in after this; what is inside can still be drained.
  void close() {
    {
      Lock lock(mutex_);
      is_closed_ = true;
    }
    wake_.notify_all();
  }

  size_t size() const {
    Lock lock(mutex_);
    return items_.size();
  }
  size_t limit() const { return limit_; }

 private:
  std::vector<T> take_all() REQUIRES(mutex_) {
    std::vector<T> taken(std::make_move_iterator(items_.begin()), std::make_move_iterator(items_.end()));
    items_.clear();
    return taken;
  }

  const size_t limit_;
  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<T> items_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
  bool is_woken_ GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
