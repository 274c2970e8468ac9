#pragma once
// ElementKernels: the elementwise and row operations of one instruction set; contracts stand in the *_isa.h of each.
// All sets give the same bits. Pure, any thread, under DenormalsOff.

#include <cstdint>

#include "compute/kernels/argmax_isa.h"
#include "compute/kernels/isa.h"
#include "compute/kernels/log_sum_exp_isa.h"
#include "compute/kernels/rms_norm_isa.h"
#include "compute/kernels/rope_isa.h"
#include "compute/kernels/silu_isa.h"

namespace tandem::kernels {

struct ElementKernels {
  tk_rms_norm_fn* rms_norm;
  tk_rope_fn* rope;
  tk_silu_mul_fn* silu_mul;
  tk_argmax_fn* argmax;
  tk_sum_exp_fn* sum_exp;
};

// The table for `isa`; calling its functions needs a machine with that instruction set.
const ElementKernels& element_kernels(Isa isa);

}  // namespace tandem::kernels
