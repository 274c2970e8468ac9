#pragma once
// TextWorker: one thread that reads and tokenizes long requests, so that they delay nobody's tokens on the I/O thread.

#include <atomic>
#include <functional>
#include <thread>

#include "base/bounded_queue.h"

namespace tandem::openai {

class TextWorker {
 public:
  explicit TextWorker(size_t queue_limit);
  ~TextWorker();  // what waits is dropped

  // False when too much waits already.
  bool try_post(std::function<void()> job) { return jobs_.try_push(std::move(job)); }

 private:
  BoundedQueue<std::function<void()>> jobs_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace tandem::openai
