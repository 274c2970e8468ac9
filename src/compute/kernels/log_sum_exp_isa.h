#pragma once
// lanes16 of exp(fl(x[i] - max)) over one segment of a vocabulary row; -inf adds nothing. log_sum_exp.h joins the
// segments. Any thread, under DenormalsOff.

#include <stdint.h>

namespace tandem::kernels {

typedef float tk_sum_exp_fn(uint32_t n, const float* x, float max);

tk_sum_exp_fn tk_sum_exp_ref, tk_sum_exp_avx2, tk_sum_exp_avx512, tk_sum_exp_avx512_simde;

}  // namespace tandem::kernels
