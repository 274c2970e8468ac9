#include "compute/kernels/exp2_avx512_isa.h"
#include "compute/kernels/silu_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {

void TANDEM_ISA_SYMBOL(tk_silu_mul_avx512)(uint32_t n, const float* gate, const float* up, float* out) {
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 y = _mm512_mul_ps(tk_silu_avx512(_mm512_loadu_ps(gate + i)), _mm512_loadu_ps(up + i));
    _mm512_storeu_ps(out + i, y);
  }
  for (; i < n; ++i) out[i] = tk_silu(gate[i]) * up[i];
}

}  // namespace tandem::kernels
