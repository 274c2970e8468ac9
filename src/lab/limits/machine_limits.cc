#include "lab/limits/machine_limits.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "lab/limits/peak_isa.h"

namespace tandem::limits {
namespace {

constexpr size_t kWindowBytes = size_t{32} << 20;
constexpr double kWindowSeconds = 0.001;
volatile uint64_t read_result;  // keeps the reads from being left out

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

void bind_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);  // where it is refused, the figures are just less steady
}

struct Unmap {
  size_t size = 0;
  void operator()(void* memory) const { munmap(memory, size); }
};
using Memory = std::unique_ptr<void, Unmap>;

Memory map_memory(size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Memory(nullptr, Unmap{0});
  madvise(memory, size, MADV_HUGEPAGE);
  return Memory(memory, Unmap{size});
}

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

Status measure_reads(const Machine& machine, const LimitOptions& options, MachineLimits& result) {
  const size_t size = std::max(options.read_bytes / kWindowBytes, uint64_t{1}) * kWindowBytes;
  std::vector<Memory> memories;
  for (uint32_t thread = 0; thread < result.num_threads; ++thread) {
    memories.push_back(map_memory(size));
    if (memories.back() == nullptr) return Error{ErrorCode::kUnavailable, "not enough memory to measure reads"};
    std::memset(memories.back().get(), 1, size);
  }
  for (const uint32_t num_threads : thread_counts(result.num_threads)) {
    const auto seconds = timed_windows(num_threads, options.num_repetitions, [&](uint32_t thread, uint32_t window) {
      const char* memory = static_cast<const char*>(memories[thread].get());
      read_result = machine.read(memory + window % (size / kWindowBytes) * kWindowBytes, kWindowBytes);
    });
    result.limits.push_back(
        limit_of({"memory", machine.read_how, "GB/s", num_threads}, static_cast<double>(kWindowBytes), seconds));
  }
  return Done{};
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
  TRY(measure_reads(machine, options, result));
  for (const Peak& peak : machine.peaks) {
    const int64_t iterations = iterations_per_window(peak);
    for (const uint32_t num_threads : thread_counts(result.num_threads)) {
      const auto seconds = timed_windows(num_threads, options.num_repetitions,
                                         [&](uint32_t, uint32_t) { peak.run(iterations); });
      result.limits.push_back(limit_of({peak.name, peak.how, "GOP/s", num_threads},
                                       peak.ops_per_iteration * static_cast<double>(iterations), seconds));
    }
  }
  return result;
}

}  // namespace tandem::limits
