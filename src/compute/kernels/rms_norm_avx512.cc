#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/rms_norm_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {

void TANDEM_ISA_SYMBOL(tk_rms_norm_avx512)(uint32_t n, float eps, const float* x, const float* weight, float* out) {
  __m512 squares = _mm512_setzero_ps();
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1);
  if (rest != 0) {
    const __m512 v = _mm512_maskz_loadu_ps(rest, x + i);  // zeros leave a lane as it is: no lane is ever -0
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  float lanes[16];
  _mm512_storeu_ps(lanes, squares);
  const float sum = tk_join_lanes16(lanes);
  const __m512 r = _mm512_set1_ps(1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps));
  for (i = 0; i + 16 <= n; i += 16) {
    const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(x + i), r);
    _mm512_storeu_ps(out + i, _mm512_mul_ps(y, _mm512_loadu_ps(weight + i)));
  }
  if (rest != 0) {
    const __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(rest, x + i), r);
    _mm512_mask_storeu_ps(out + i, rest, _mm512_mul_ps(y, _mm512_maskz_loadu_ps(rest, weight + i)));
  }
}

}  // namespace tandem::kernels
