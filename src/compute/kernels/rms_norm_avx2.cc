#include <immintrin.h>
#include <string.h>

#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/rms_norm_isa.h"

namespace tandem::kernels {

void tk_rms_norm_avx2(uint32_t n, float eps, const float* x, const float* weight, float* out) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i);
    const __m256 b = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  if (i < n) {
    float tail[16] = {};  // zeros leave a lane as it is: no lane is ever -0
    memcpy(tail, x + i, (n - i) * sizeof(float));
    const __m256 a = _mm256_loadu_ps(tail);
    const __m256 b = _mm256_loadu_ps(tail + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  const float sum = tk_join_lanes16_avx2(low, high);
  const float r = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  const __m256 rs = _mm256_set1_ps(r);
  for (i = 0; i + 8 <= n; i += 8) {
    const __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), rs);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(y, _mm256_loadu_ps(weight + i)));
  }
  for (; i < n; ++i) out[i] = (x[i] * r) * weight[i];
}

}  // namespace tandem::kernels
