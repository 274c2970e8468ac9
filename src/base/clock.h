#pragma once
// Clock: where policy code gets the time from. Monotonic; never compared across machines.

#include <cstdint>

namespace tandem {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
  double now_s() const { return static_cast<double>(now_ns()) * 1e-9; }
};

// The machine's monotonic clock. Any thread.
class SystemClock final : public Clock {
 public:
  int64_t now_ns() const override;
};

// How long the calling thread has been on a core.
int64_t thread_cpu_ns();

// For tests and the simulator: time moves when told. One thread.
class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_; }
  void advance_ns(int64_t by_ns) { now_ns_ += by_ns; }
  void advance_ms(double by_ms) { now_ns_ += static_cast<int64_t>(by_ms * 1e6); }
  void set_ns(int64_t now_ns) { now_ns_ = now_ns; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace tandem
