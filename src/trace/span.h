#pragma once
// Span: a part of a request's way, with the time of day at which it began. SpanRing: the newest of them.

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_safety.h"
#include "base/trace_context.h"

namespace tandem::trace {

struct Span {
  TraceContext context;   // its own id and its parent's
  std::string process;    // who measured it: a node's name, or "gateway"
  std::string name;
  int64_t begin_unix_ns = 0, duration_ns = 0;
  uint64_t lane = 0;      // what belongs together within a process: a request's number
  std::vector<std::pair<std::string, std::string>> attributes;
};

// Takes what somebody measured. Any thread; must not wait.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void record(const Span& span) = 0;
};

// The newest spans. Any thread.
class SpanRing final : public SpanSink {
 public:
  explicit SpanRing(size_t max_spans) : max_spans_(max_spans) {}

  void record(const Span& span) override;
  std::vector<Span> spans() const;  // the oldest first
  uint64_t num_dropped() const;     // to make room

 private:
  const size_t max_spans_;
  mutable Mutex mutex_;
  std::deque<Span> spans_ GUARDED_BY(mutex_);
  uint64_t num_dropped_ GUARDED_BY(mutex_) = 0;
};

int64_t unix_now_ns();

}  // namespace tandem::trace
