#include "base/clock.h"

#include <time.h>

namespace tandem {

namespace {

int64_t now_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int64_t SystemClock::now_ns() const { return now_of(CLOCK_MONOTONIC); }

int64_t thread_cpu_ns() { return now_of(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace tandem
