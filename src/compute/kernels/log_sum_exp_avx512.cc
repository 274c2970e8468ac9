#include "compute/kernels/exp2_avx512_isa.h"
#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/log_sum_exp_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {

float TANDEM_ISA_SYMBOL(tk_sum_exp_avx512)(uint32_t n, const float* x, float max) {
  const __m512 maxima = _mm512_set1_ps(max);
  __m512 sums = _mm512_setzero_ps();
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    sums = _mm512_add_ps(sums, tk_exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(x + i), maxima)));
  }
  float lanes[16];
  _mm512_storeu_ps(lanes, sums);
  for (uint32_t lane = 0; i < n; ++i, ++lane) lanes[lane] = lanes[lane] + tk_exp(x[i] - max);
  return tk_join_lanes16(lanes);
}

}  // namespace tandem::kernels
