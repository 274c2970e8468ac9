#include "lab/limits/plain_read.h"

#include <algorithm>

#include "lab/limits/peak_isa.h"
#include "lab/limits/windows.h"

namespace tandem::limits {
namespace {

constexpr uint64_t kUnit = 512;  // of the read loops
constexpr uintptr_t kAlignment = 64;
// Guesses how many passes fill the time; a machine that reads faster still gets a mean over several milliseconds.
constexpr double kExpectedBytesPerS = 80e9;
volatile uint64_t read_result;  // keeps the reads from being left out

// The units of `span` that fall to one of the threads: every thread gets as many, within one.
std::span<const uint8_t> part_of(std::span<const uint8_t> span, uint32_t thread, uint32_t num_threads) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(span.data());
  const uint64_t skipped = std::min<uint64_t>((kAlignment - address % kAlignment) % kAlignment, span.size());
  const uint64_t num_units = (span.size() - skipped) / kUnit;
  const uint64_t begin = num_units * thread / num_threads, end = num_units * (thread + 1) / num_threads;
  return span.subspan(skipped + begin * kUnit, (end - begin) * kUnit);
}

}  // namespace

Result<PlainRead> PlainRead::create(const std::vector<std::span<const uint8_t>>& spans, uint32_t num_threads) {
  PlainRead reader;
  if (!__builtin_cpu_supports("avx2")) {
    return Error{ErrorCode::kUnavailable, "measuring reads needs a processor with AVX2"};
  }
  reader.read_ = __builtin_cpu_supports("avx512f") ? tandem_read_avx512 : tandem_read_avx2;
  for (uint32_t thread = 0; thread < num_threads; ++thread) {
    reader.parts_.emplace_back();
    for (const std::span<const uint8_t> span : spans) {
      const std::span<const uint8_t> part = part_of(span, thread, num_threads);
      if (part.empty()) continue;
      reader.parts_.back().push_back(part);
      reader.size_bytes_ += part.size();
    }
  }
  if (reader.size_bytes_ == 0) return Error{ErrorCode::kUnavailable, "there are no weights that could be read"};
  return reader;
}

double PlainRead::bytes_per_s(double min_s) const {
  const double passes_needed = min_s * kExpectedBytesPerS / static_cast<double>(size_bytes_);
  const uint32_t num_passes = static_cast<uint32_t>(std::clamp(passes_needed, 1.0, 1e6) + 0.5);
  const std::vector<double> seconds =
      timed_windows(static_cast<uint32_t>(parts_.size()), num_passes, [&](uint32_t thread, uint32_t /*pass*/) {
        uint64_t sum = 0;
        for (const std::span<const uint8_t> part : parts_[thread]) sum |= read_(part.data(), part.size());
        read_result = sum;
      });
  double total_s = 0;
  for (const double pass_s : seconds) total_s += pass_s;
  return static_cast<double>(size_bytes_) * num_passes / total_s;
}

}  // namespace tandem::limits
