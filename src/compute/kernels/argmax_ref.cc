#include "compute/kernels/argmax_isa.h"

namespace tandem::kernels {

tk_argmax tk_argmax_ref(uint32_t n, const float* values) {
  const float infinity = __builtin_inff();
  tk_argmax best = {0, -infinity, true};
  for (uint32_t i = 0; i < n; ++i) {
    if (!(values[i] < infinity)) best.is_valid = false;
    if (values[i] > best.value) {
      best.index = i;
      best.value = values[i];
    }
  }
  if (best.value == -infinity) best.is_valid = false;
  return best;
}

}  // namespace tandem::kernels
