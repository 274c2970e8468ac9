#include <immintrin.h>

#include "compute/kernels/exp2_avx2_isa.h"
#include "compute/kernels/silu_isa.h"

namespace tandem::kernels {

void tk_silu_mul_avx2(uint32_t n, const float* gate, const float* up, float* out) {
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 y = _mm256_mul_ps(tk_silu_avx2(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i));
    _mm256_storeu_ps(out + i, y);
  }
  for (; i < n; ++i) out[i] = tk_silu(gate[i]) * up[i];
}

}  // namespace tandem::kernels
