#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "lab/limits/peak_isa.h"

#define ALL_YMM                                                                                                  \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12", \
      "ymm13", "ymm14", "ymm15"
// The inputs are zeros, so that no denormal or NaN slows a unit down.
#define ZERO_REGISTERS asm volatile("vzeroall" ::: "memory", ALL_YMM)

#define INT8_CHAIN(t, sum)                        \
  "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #t "\n"    \
  "vpmaddwd %%ymm13, %%ymm" #t ", %%ymm" #t "\n"  \
  "vpaddd %%ymm" #t ", %%ymm" #sum ", %%ymm" #sum "\n"

void tandem_peak_int8_avx2(int64_t iterations) {
  ZERO_REGISTERS;
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile(INT8_CHAIN(0, 6) INT8_CHAIN(1, 7) INT8_CHAIN(2, 8) INT8_CHAIN(3, 9) INT8_CHAIN(4, 10)
                     INT8_CHAIN(5, 11)::: ALL_YMM);
  }
}

// Without a bf16 instruction: the even weights are shifted into place, the odd ones masked, each then an fma. Ten
// sums hide the latency; three registers take turns in holding a widened weight.
void tandem_peak_bf16_avx2(int64_t iterations) {
  ZERO_REGISTERS;
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile(
        "vpslld $16, %%ymm14, %%ymm10\n vfmadd231ps %%ymm15, %%ymm10, %%ymm0\n"
        "vpand %%ymm13, %%ymm14, %%ymm11\n vfmadd231ps %%ymm15, %%ymm11, %%ymm1\n"
        "vpslld $16, %%ymm14, %%ymm12\n vfmadd231ps %%ymm15, %%ymm12, %%ymm2\n"
        "vpand %%ymm13, %%ymm14, %%ymm10\n vfmadd231ps %%ymm15, %%ymm10, %%ymm3\n"
        "vpslld $16, %%ymm14, %%ymm11\n vfmadd231ps %%ymm15, %%ymm11, %%ymm4\n"
        "vpand %%ymm13, %%ymm14, %%ymm12\n vfmadd231ps %%ymm15, %%ymm12, %%ymm5\n"
        "vpslld $16, %%ymm14, %%ymm10\n vfmadd231ps %%ymm15, %%ymm10, %%ymm6\n"
        "vpand %%ymm13, %%ymm14, %%ymm11\n vfmadd231ps %%ymm15, %%ymm11, %%ymm7\n"
        "vpslld $16, %%ymm14, %%ymm12\n vfmadd231ps %%ymm15, %%ymm12, %%ymm8\n"
        "vpand %%ymm13, %%ymm14, %%ymm10\n vfmadd231ps %%ymm15, %%ymm10, %%ymm9\n" ::: ALL_YMM);
  }
}

#define FMA(sum) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #sum "\n"

void tandem_peak_f32_avx2(int64_t iterations) {
  ZERO_REGISTERS;
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile(FMA(0) FMA(1) FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9) FMA(10) FMA(11)::: ALL_YMM);
  }
}

uint64_t tandem_read_avx2(const void* data, size_t size_bytes) {
  const char* bytes = static_cast<const char*>(data);
  __m256i sums[8];
  for (int k = 0; k < 8; ++k) sums[k] = _mm256_setzero_si256();
  for (size_t i = 0; i < size_bytes; i += 256) {
    for (int k = 0; k < 8; ++k) {
      const __m256i* at = reinterpret_cast<const __m256i*>(bytes + i + 32 * k);
      sums[k] = _mm256_or_si256(sums[k], _mm256_load_si256(at));
    }
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm256_or_si256(sums[0], sums[k]);
  uint64_t words[4];
  memcpy(words, &sums[0], sizeof words);
  return words[0] | words[1] | words[2] | words[3];
}
