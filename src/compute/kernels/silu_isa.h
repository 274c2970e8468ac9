#pragma once
// Gated SiLU (numerics 5): out[i] = fl(silu(gate[i]) * up[i]), silu(x) = fl(x / fl(1 + exp(-x))). `out` may be `gate`
// or `up`. Any thread, under DenormalsOff.

#include <stdint.h>

namespace tandem::kernels {

typedef void tk_silu_mul_fn(uint32_t n, const float* gate, const float* up, float* out);

tk_silu_mul_fn tk_silu_mul_ref, tk_silu_mul_avx2, tk_silu_mul_avx512, tk_silu_mul_avx512_simde;

}  // namespace tandem::kernels
