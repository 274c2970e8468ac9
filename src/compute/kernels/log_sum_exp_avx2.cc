#include <immintrin.h>

#include "compute/kernels/exp2_avx2_isa.h"
#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/log_sum_exp_isa.h"

namespace tandem::kernels {

float tk_sum_exp_avx2(uint32_t n, const float* x, float max) {
  const __m256 maxima = _mm256_set1_ps(max);
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    low = _mm256_add_ps(low, tk_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i), maxima)));
    high = _mm256_add_ps(high, tk_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), maxima)));
  }
  if (i < n) {
    float tail[16] = {};
    for (uint32_t j = i; j < n; ++j) tail[j - i] = tk_exp(x[j] - max);
    low = _mm256_add_ps(low, _mm256_loadu_ps(tail));
    high = _mm256_add_ps(high, _mm256_loadu_ps(tail + 8));
  }
  return tk_join_lanes16_avx2(low, high);
}

}  // namespace tandem::kernels
