#include "lab/limits/machine_limits.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "lab/limits/peak_isa.h"
#include "lab/limits/plain_read.h"

namespace tandem::limits {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

TEST_CASE("the read loops look at every byte") {
  if (!__builtin_cpu_supports("avx2")) return;
  constexpr size_t kSize = 4096;
  const std::unique_ptr<void, Free> memory(std::aligned_alloc(64, kSize));
  char* bytes = static_cast<char*>(memory.get());
  for (size_t i = 0; i < kSize; ++i) {
    std::memset(bytes, 0, kSize);
    bytes[i] = 0x40;
    CHECK(tandem_read_avx2(bytes, kSize) == uint64_t{0x40} << (i % 8 * 8));
    if (__builtin_cpu_supports("avx512f")) CHECK(tandem_read_avx512(bytes, kSize) == uint64_t{0x40} << (i % 8 * 8));
  }
}

TEST_CASE("every limit is measured for one thread and for all, and is a possible figure") {
  if (!__builtin_cpu_supports("avx2")) return;
  LimitOptions options;
  options.num_threads = 2;
  options.num_repetitions = 5;
  options.read_bytes = 64 << 20;
  const auto measured = measure_limits(options);
  REQUIRE(bool(measured));
  // Reads of four working sets and three kinds of arithmetic, by one thread and by two; a barrier and two wakes.
  CHECK(measured.value().limits.size() == 2 * (4 + 3) + 3);
  CHECK_FALSE(measured.value().cpu.empty());
  for (const std::string_view name : {"memory", "int8", "bf16", "f32"}) {
    for (const uint32_t threads : {1u, 2u}) {
      CAPTURE(std::string(name));
      const double peak = measured.value().peak(name, threads);
      CHECK(peak > 1e7);
      CHECK(peak < 1e14);
    }
  }
  for (const Limit& limit : measured.value().limits) {
    const bool is_rate = limit.unit != "ns";
    CHECK((is_rate ? limit.best >= limit.median : limit.best <= limit.median));
    CHECK(limit.best > 0);
    CHECK((limit.working_set_bytes > 0) == (limit.unit == "GB/s"));
  }
  CHECK(measured.value().peak("memory", 3) == 0);
}

TEST_CASE("only the peaks, where nothing else is wanted; no waits where there is one thread") {
  if (!__builtin_cpu_supports("avx2")) return;
  LimitOptions options;
  options.num_threads = 1;
  options.num_repetitions = 3;
  options.read_bytes = 32 << 20;
  auto all = measure_limits(options);
  REQUIRE(bool(all));
  for (const Limit& limit : all->limits) CHECK(limit.unit != "ns");
  options.only_peaks = true;
  auto peaks = measure_limits(options);
  REQUIRE(bool(peaks));
  CHECK(peaks->limits.size() == 3);
  CHECK(peaks->peak("int8", 1) > 0);
}

TEST_CASE("plain reads cover the spans, whatever their ends and the number of threads") {
  if (!__builtin_cpu_supports("avx2")) return;
  std::vector<uint8_t> bytes(100'000);
  const std::span<const uint8_t> span(bytes);
  for (const uint32_t threads : {1u, 2u, 3u}) {
    auto reader = PlainRead::create({span.first(50'000), span.subspan(50'001), span.first(3)}, threads);
    REQUIRE(bool(reader));
    // Ends smaller than a unit and its alignment are left out, two of them here.
    CHECK(reader->size_bytes() <= bytes.size());
    CHECK(reader->size_bytes() >= bytes.size() - 2 * (512 + 64));
    CHECK(reader->size_bytes() % 512 == 0);
    CHECK(reader->bytes_per_s(1e-4) > 1e6);
  }
  CHECK_FALSE(bool(PlainRead::create({span.first(100)}, 2)));
}

}  // namespace
}  // namespace tandem::limits
