#include <immintrin.h>
#include <stdint.h>

#include "lab/limits/peak_isa.h"

#define ALL_ZMM                                                                                                       \
  "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", \
      "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm30", "zmm31"
#define ZERO_REGISTERS \
  asm volatile("vzeroall\n vpxorq %%zmm30, %%zmm30, %%zmm30\n vpxorq %%zmm31, %%zmm31, %%zmm31" ::: "memory", ALL_ZMM)
#define ONE(op, sum) op " %%zmm30, %%zmm31, %%zmm" #sum "\n"
#define TWENTY(op)                                                                                                 \
  ONE(op, 0) ONE(op, 1) ONE(op, 2) ONE(op, 3) ONE(op, 4) ONE(op, 5) ONE(op, 6) ONE(op, 7) ONE(op, 8) ONE(op, 9)    \
  ONE(op, 10) ONE(op, 11) ONE(op, 12) ONE(op, 13) ONE(op, 14) ONE(op, 15) ONE(op, 16) ONE(op, 17) ONE(op, 18)     \
  ONE(op, 19)

void tandem_peak_int8_avx512(int64_t iterations) {
  ZERO_REGISTERS;
  for (int64_t i = 0; i < iterations; ++i) asm volatile(TWENTY("vpdpbusd")::: ALL_ZMM);
}

void tandem_peak_f32_avx512(int64_t iterations) {
  ZERO_REGISTERS;
  for (int64_t i = 0; i < iterations; ++i) asm volatile(TWENTY("vfmadd231ps")::: ALL_ZMM);
}

uint64_t tandem_read_avx512(const void* data, size_t size_bytes) {
  const char* bytes = static_cast<const char*>(data);
  __m512i sums[8];
  for (int k = 0; k < 8; ++k) sums[k] = _mm512_setzero_si512();
  for (size_t i = 0; i < size_bytes; i += 512) {
    for (int k = 0; k < 8; ++k) sums[k] = _mm512_or_si512(sums[k], _mm512_load_si512(bytes + i + 64 * k));
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm512_or_si512(sums[0], sums[k]);
  return static_cast<uint64_t>(_mm512_reduce_or_epi64(sums[0]));
}
