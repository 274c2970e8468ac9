#pragma once
// RoPE of one head vector (numerics 5): a pair (a, b) at angle index i becomes
//   (fma(a, cos[i], -fl(b * sin[i])), fma(a, sin[i], fl(b * cos[i]))).
// Elements from rotary_dim on are copied. `out` may be `in`. Any thread, under DenormalsOff.

#include <stdint.h>

namespace tandem::kernels {

enum tk_rope_pairing : uint32_t {
  TK_ROPE_ADJACENT = 0,  // pair i = (2i, 2i + 1)
  TK_ROPE_HALVES = 1,    // pair i = (i, i + rotary_dim / 2)
};

struct tk_rope {
  uint32_t head_dim;
  uint32_t rotary_dim;  // even, <= head_dim
  uint32_t pairing;     // tk_rope_pairing
};

// `table`: this position's row of the table (compute/model/rope_table.h), rotary_dim floats: cos of each angle, then
// sin of each.
typedef void tk_rope_fn(const tk_rope* shape, const float* table, const float* in, float* out);

tk_rope_fn tk_rope_ref, tk_rope_avx2;

}  // namespace tandem::kernels
