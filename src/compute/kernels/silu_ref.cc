#include "compute/kernels/exp2_isa.h"
#include "compute/kernels/silu_isa.h"

namespace tandem::kernels {

void tk_silu_mul_ref(uint32_t n, const float* gate, const float* up, float* out) {
  for (uint32_t i = 0; i < n; ++i) out[i] = tk_silu(gate[i]) * up[i];
}

}  // namespace tandem::kernels
