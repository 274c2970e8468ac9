#include "lab/limits/waits.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "lab/limits/windows.h"

namespace tandem::limits {
namespace {

constexpr uint32_t kBarriers = 1000;  // of a repetition

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

struct SpinBarrier {
  explicit SpinBarrier(uint32_t threads) : num_threads(threads) {}

  void wait(bool yields) {
    const uint32_t seen = count.load(std::memory_order_acquire);
    if (num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
      num_arrived.store(0, std::memory_order_relaxed);
      count.store(seen + 1, std::memory_order_release);
      return;
    }
    while (count.load(std::memory_order_acquire) == seen) {
      if (yields) std::this_thread::yield();
      else pause_cpu();
    }
  }

  const uint32_t num_threads;
  // Each on its own cache line: one is polled while the other is written.
  alignas(64) std::atomic<uint32_t> num_arrived{0};
  alignas(64) std::atomic<uint32_t> count{0};
};

}  // namespace

std::vector<double> barrier_times(uint32_t num_threads, uint32_t num_repetitions) {
  SpinBarrier barrier(num_threads);
  const bool yields = num_threads > usable_cores().size();
  std::vector<double> seconds = timed_windows(num_threads, num_repetitions, [&](uint32_t, uint32_t) {
    for (uint32_t i = 0; i < kBarriers; ++i) barrier.wait(yields);
  });
  for (double& value : seconds) value /= kBarriers;
  return seconds;
}

std::vector<double> wake_times(double asleep_s, uint32_t num_repetitions) {
  const std::vector<int> cores = usable_cores();
  std::atomic<uint32_t> calls{0}, is_listening{0};
  std::atomic<double> called_s{0};
  std::vector<double> seconds;
  std::thread sleeper([&] {
    bind_to(cores.back());
    for (uint32_t i = 0; i < num_repetitions; ++i) {
      is_listening.store(i + 1);
      while (calls.load() <= i) futex(calls, FUTEX_WAIT_PRIVATE, i);
      seconds.push_back(now_s() - called_s.load());
    }
  });
  std::thread waker([&] {
    bind_to(cores.front());
    for (uint32_t i = 0; i < num_repetitions; ++i) {
      while (is_listening.load() <= i) std::this_thread::yield();
      // Awake or asleep this long: a sleep would make the waker's own waking part of the figure when it is short.
      const double begin_s = now_s();
      if (asleep_s >= 1e-3) std::this_thread::sleep_for(std::chrono::duration<double>(asleep_s));
      while (now_s() - begin_s < asleep_s) pause_cpu();
      called_s.store(now_s());
      calls.store(i + 1);
      futex(calls, FUTEX_WAKE_PRIVATE, 1);
    }
  });
  sleeper.join();
  waker.join();
  return seconds;
}

}  // namespace tandem::limits
