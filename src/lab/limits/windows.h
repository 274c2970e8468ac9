#pragma once
// What all measurements of limits share: cores to bind to, memory to read, and windows that several threads begin
// together.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace tandem::limits {

double now_s();

// Those this process may run on, at least one.
std::vector<int> usable_cores();

// Binds the calling thread. Where that is refused, the figures are just less steady.
void bind_to(int core);

void pause_cpu();

struct Unmap {
  size_t size = 0;
  void operator()(void* memory) const { munmap(memory, size); }
};
using Memory = std::unique_ptr<void, Unmap>;

// In huge pages where there are any. Null when there is not enough.
Memory map_memory(size_t size);

// Runs `work(thread, repetition)` on that many bound threads, all starting each repetition together. Returns the
// seconds from the first start to the last end of each repetition.
template <class Work>
std::vector<double> timed_windows(uint32_t num_threads, uint32_t num_repetitions, Work work) {
  const std::vector<int> cores = usable_cores();
  std::vector<double> begins(size_t{num_threads} * num_repetitions), ends(begins.size());
  std::atomic<uint32_t> num_arrived{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      bind_to(cores[thread % cores.size()]);
      for (uint32_t repetition = 0; repetition < num_repetitions; ++repetition) {
        num_arrived.fetch_add(1);
        while (num_arrived.load() < (repetition + 1) * num_threads) {
          if (num_threads > cores.size()) std::this_thread::yield();
        }
        begins[size_t{repetition} * num_threads + thread] = now_s();
        work(thread, repetition);
        ends[size_t{repetition} * num_threads + thread] = now_s();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> seconds;
  for (uint32_t repetition = 0; repetition < num_repetitions; ++repetition) {
    const auto first = static_cast<ptrdiff_t>(size_t{repetition} * num_threads);
    seconds.push_back(*std::max_element(ends.begin() + first, ends.begin() + first + num_threads) -
                      *std::min_element(begins.begin() + first, begins.begin() + first + num_threads));
  }
  return seconds;
}

}  // namespace tandem::limits
