#include "trace/span.h"

#include <chrono>

namespace tandem::trace {

void SpanRing::record(const Span& span) {
  Lock lock(mutex_);
  spans_.push_back(span);
  if (spans_.size() <= max_spans_) return;
  spans_.pop_front();
  ++num_dropped_;
}

std::vector<Span> SpanRing::spans() const {
  Lock lock(mutex_);
  return {spans_.begin(), spans_.end()};
}

uint64_t SpanRing::num_dropped() const {
  Lock lock(mutex_);
  return num_dropped_;
}

int64_t unix_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace tandem::trace
