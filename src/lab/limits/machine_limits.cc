#include "lab/limits/machine_limits.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "lab/limits/peak_isa.h"
#include "lab/limits/waits.h"
#include "lab/limits/windows.h"

namespace tandem::limits {
namespace {

constexpr size_t kWindowBytes = size_t{32} << 20;
constexpr double kWindowSeconds = 0.001;
volatile uint64_t read_result;  // keeps the reads from being left out

// The limit from the windows' times, leaving out the first tenth, in which clocks and caches settle.
Limit limit_of(Limit limit, double work_per_window, std::vector<double> seconds) {
  seconds.erase(seconds.begin(), seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 10));
  std::sort(seconds.begin(), seconds.end());
  const double work = work_per_window * limit.num_threads * 1e-9;
  limit.best = work / seconds.front();
  limit.median = work / seconds[seconds.size() / 2];
  return limit;
}

struct Peak {
  std::string_view name;
  std::string_view how;
  double ops_per_iteration;
  void (*run)(int64_t iterations);
};

struct Machine {
  uint64_t (*read)(const void*, size_t);
  std::string_view read_how;
  std::vector<Peak> peaks;
};

Machine choose_code() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni")) {
    const bool has_bf16 = __builtin_cpu_supports("avx512bf16");
    return {tandem_read_avx512,
            "512-bit loads",
            {{"int8", "vpdpbusd zmm", kAvx512Int8Ops, tandem_peak_int8_avx512},
             has_bf16 ? Peak{"bf16", "vdpbf16ps zmm", kAvx512Bf16Ops, tandem_peak_bf16_avx512}
                      : Peak{"bf16", "widened, fma ymm", kAvx2Bf16Ops, tandem_peak_bf16_avx2},
             {"f32", "vfmadd231ps zmm", kAvx512F32Ops, tandem_peak_f32_avx512}}};
  }
  return {tandem_read_avx2,
          "256-bit loads",
          {{"int8", "vpmaddubsw + vpmaddwd ymm", kAvx2Int8Ops, tandem_peak_int8_avx2},
           {"bf16", "widened, fma ymm", kAvx2Bf16Ops, tandem_peak_bf16_avx2},
           {"f32", "vfmadd231ps ymm", kAvx2F32Ops, tandem_peak_f32_avx2}}};
}

std::vector<uint32_t> thread_counts(uint32_t num_threads) {
  return num_threads > 1 ? std::vector<uint32_t>{1, num_threads} : std::vector<uint32_t>{1};
}

int64_t iterations_per_window(const Peak& peak) {
  for (int64_t iterations = 1000;; iterations *= 2) {
    const double begin = now_s();
    peak.run(iterations);
    if (now_s() - begin > kWindowSeconds / 2) return iterations * 2;
  }
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "unknown";
}

// Working sets of each thread, smallest first: what L1, L2, a share of L3, and none of them hold.
std::vector<uint64_t> working_sets(uint64_t largest) {
  std::vector<uint64_t> sizes;
  for (const uint64_t size : {uint64_t{32} << 10, uint64_t{512} << 10, uint64_t{8} << 20, uint64_t{64} << 20}) {
    if (size < largest) sizes.push_back(size);
  }
  sizes.push_back(largest);
  return sizes;
}

Status measure_reads(const Machine& machine, const LimitOptions& options, MachineLimits& result) {
  const uint64_t largest = std::max(options.read_bytes / kWindowBytes, uint64_t{1}) * kWindowBytes;
  std::vector<Memory> memories;
  for (uint32_t thread = 0; thread < result.num_threads; ++thread) {
    memories.push_back(map_memory(largest));
    if (memories.back() == nullptr) return Error{ErrorCode::kUnavailable, "not enough memory to measure reads"};
    std::memset(memories.back().get(), 1, largest);
  }
  for (const uint64_t size : working_sets(largest)) {
    const uint64_t piece = std::min<uint64_t>(size, kWindowBytes);
    for (const uint32_t num_threads : thread_counts(result.num_threads)) {
      const auto seconds = timed_windows(num_threads, options.num_repetitions, [&](uint32_t thread, uint32_t window) {
        const char* memory = static_cast<const char*>(memories[thread].get());
        for (uint64_t done = 0; done < kWindowBytes; done += piece) {
          read_result = machine.read(memory + (window * kWindowBytes + done) % size, piece);
        }
      });
      Limit limit{size == largest ? "memory" : "read", machine.read_how, "GB/s", num_threads};
      limit.working_set_bytes = size;
      result.limits.push_back(limit_of(limit, static_cast<double>(kWindowBytes), seconds));
    }
  }
  return Done{};
}

void measure_peaks(const Machine& machine, const LimitOptions& options, MachineLimits& result) {
  for (const Peak& peak : machine.peaks) {
    const int64_t iterations = iterations_per_window(peak);
    for (const uint32_t num_threads : thread_counts(result.num_threads)) {
      const auto seconds = timed_windows(num_threads, options.num_repetitions,
                                         [&](uint32_t, uint32_t) { peak.run(iterations); });
      result.limits.push_back(limit_of({peak.name, peak.how, "GOP/s", num_threads},
                                       peak.ops_per_iteration * static_cast<double>(iterations), seconds));
    }
  }
}

void add_wait(Limit limit, std::vector<double> seconds, MachineLimits& result) {
  std::sort(seconds.begin(), seconds.end());
  limit.best = seconds.front() * 1e9;
  limit.median = seconds[seconds.size() / 2] * 1e9;
  result.limits.push_back(limit);
}

void measure_waits(const LimitOptions& options, MachineLimits& result) {
  if (result.num_threads == 1) return;  // nobody to wait for
  add_wait({"barrier", "spin on a counter", "ns", result.num_threads},
           barrier_times(result.num_threads, options.num_repetitions), result);
  add_wait({"wake", "futex, asleep for 50 us", "ns", 2}, wake_times(50e-6, options.num_repetitions), result);
  add_wait({"wake", "futex, asleep for 1 ms", "ns", 2}, wake_times(1e-3, options.num_repetitions), result);
}

}  // namespace

double MachineLimits::peak(std::string_view name, uint32_t threads) const {
  for (const Limit& limit : limits) {
    if (limit.name == name && limit.num_threads == threads) return limit.best * 1e9;
  }
  return 0;
}

uint32_t num_usable_cores() { return static_cast<uint32_t>(usable_cores().size()); }

Result<MachineLimits> measure_limits(const LimitOptions& options) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return Error{ErrorCode::kUnavailable, "measuring limits needs a processor with AVX2 and FMA"};
  }
  MachineLimits result;
  result.cpu = cpu_name();
  result.num_threads = options.num_threads == 0 ? num_usable_cores() : options.num_threads;
  const Machine machine = choose_code();
  if (!options.only_peaks) TRY(measure_reads(machine, options, result));
  measure_peaks(machine, options, result);
  if (!options.only_peaks) measure_waits(options, result);
  return result;
}

}  // namespace tandem::limits
