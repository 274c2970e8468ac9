#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/rms_norm_isa.h"

namespace tandem::kernels {

void tk_rms_norm_ref(uint32_t n, float eps, const float* x, const float* weight, float* out) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i % 16] = __builtin_fmaf(x[i], x[i], lanes[i % 16]);
  const float sum = tk_join_lanes16(lanes);
  const float r = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  for (uint32_t i = 0; i < n; ++i) out[i] = (x[i] * r) * weight[i];
}

}  // namespace tandem::kernels
