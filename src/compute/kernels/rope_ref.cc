#include "compute/kernels/rope_isa.h"

namespace tandem::kernels {

void tk_rope_ref(const tk_rope* shape, const float* table, const float* in, float* out) {
  const uint32_t half = shape->rotary_dim / 2;
  const bool is_adjacent = shape->pairing == TK_ROPE_ADJACENT;
  for (uint32_t i = 0; i < half; ++i) {
    const uint32_t first = is_adjacent ? 2 * i : i;
    const uint32_t second = is_adjacent ? 2 * i + 1 : i + half;
    const float a = in[first];
    const float b = in[second];
    const float c = table[i];
    const float s = table[half + i];
    out[first] = __builtin_fmaf(a, c, -(b * s));
    out[second] = __builtin_fmaf(a, s, b * c);
  }
  for (uint32_t i = shape->rotary_dim; i < shape->head_dim; ++i) out[i] = in[i];
}

}  // namespace tandem::kernels
