#include <immintrin.h>
#include <stdint.h>

#include "lab/limits/peak_isa.h"

#define ALL_ZMM                                                                                                       \
  "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", \
      "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm30", "zmm31"
#define ONE(sum) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #sum "\n"

void tandem_peak_bf16_avx512(int64_t iterations) {
  asm volatile("vzeroall\n vpxorq %%zmm30, %%zmm30, %%zmm30\n vpxorq %%zmm31, %%zmm31, %%zmm31" ::: "memory", ALL_ZMM);
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile(ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12) ONE(13)
                     ONE(14) ONE(15) ONE(16) ONE(17) ONE(18) ONE(19)::: ALL_ZMM);
  }
}
