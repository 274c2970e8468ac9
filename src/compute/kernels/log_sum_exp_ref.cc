#include "compute/kernels/exp2_isa.h"
#include "compute/kernels/lanes16_isa.h"
#include "compute/kernels/log_sum_exp_isa.h"

namespace tandem::kernels {

float tk_sum_exp_ref(uint32_t n, const float* x, float max) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i % 16] = lanes[i % 16] + tk_exp(x[i] - max);
  return tk_join_lanes16(lanes);
}

}  // namespace tandem::kernels
