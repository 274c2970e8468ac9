#pragma once
// What this machine can do at most: plain reads by working set, int8, bf16 and f32 arithmetic, by one thread and by
// all, and what threads pay to wait for each other. Figures that kernels are measured against (tandem bench limits, and
// the limit_fraction of bench engine).
//
// Every figure is measured here and now; a busy neighbour makes it smaller.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::limits {

struct LimitOptions {
  uint32_t num_threads = 0;       // of the all-threads figures; 0: as many cores as this process may use
  uint32_t num_repetitions = 40;  // windows of about a millisecond (reads: 32 MiB a thread)
  uint64_t read_bytes = 256 << 20;  // the largest working set, walked through by each thread
  bool only_peaks = false;          // arithmetic alone
};

struct Limit {
  // "read", "memory" (reads of the largest working set), "int8", "bf16", "f32", "barrier", "wake"
  std::string_view name;
  std::string_view how;   // the instructions
  std::string_view unit;  // "GB/s", "GOP/s", or "ns" where less is better
  uint32_t num_threads = 1;
  double best = 0;    // of the repetitions
  double median = 0;
  uint64_t working_set_bytes = 0;  // of each thread; 0: no reads
};

struct MachineLimits {
  std::string cpu;        // as /proc/cpuinfo names it
  uint32_t num_threads = 1;
  std::vector<Limit> limits;  // each rate for one thread, then, where there are more, for all

  // The best rate of `name` for `num_threads` (1 or all), as unit per second without prefix; 0 when not measured.
  double peak(std::string_view name, uint32_t num_threads) const;
};

// Cores that this process may run on.
uint32_t num_usable_cores();

// Takes about a second. kUnavailable on a machine without AVX2, or with too little memory to read from. Starts
// threads of its own, each bound to a core, and joins them.
Result<MachineLimits> measure_limits(const LimitOptions& options);

}  // namespace tandem::limits
