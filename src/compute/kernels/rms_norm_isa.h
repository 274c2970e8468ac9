#pragma once
// RMSNorm of one row (numerics 4): ss = lanes16 of fma(x, x, lane); r = 1 / sqrt(ss / n + eps); out = (x * r) * weight,
// one rounding an operation. Also the per-head q/k norm, with n = head_dim. `out` may be `x`. n >= 1. Any thread, under
// DenormalsOff.

#include <stdint.h>

namespace tandem::kernels {

typedef void tk_rms_norm_fn(uint32_t n, float eps, const float* x, const float* weight, float* out);

tk_rms_norm_fn tk_rms_norm_ref, tk_rms_norm_avx2, tk_rms_norm_avx512, tk_rms_norm_avx512_simde;

}  // namespace tandem::kernels
