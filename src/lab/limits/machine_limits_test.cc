#include "lab/limits/machine_limits.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "lab/limits/peak_isa.h"

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
  CHECK(measured.value().limits.size() == 8);
  CHECK_FALSE(measured.value().cpu.empty());
  for (const std::string_view name : {"memory", "int8", "bf16", "f32"}) {
    for (const uint32_t threads : {1u, 2u}) {
      CAPTURE(std::string(name));
      const double peak = measured.value().peak(name, threads);
      CHECK(peak > 1e7);
      CHECK(peak < 1e14);
    }
  }
  for (const Limit& limit : measured.value().limits) CHECK(limit.best >= limit.median);
  CHECK(measured.value().peak("memory", 3) == 0);
}

}  // namespace
}  // namespace tandem::limits
