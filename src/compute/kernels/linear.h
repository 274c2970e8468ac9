#pragma once
// Linear kernels: y = x w^T on packed weights, with bias, gated activation and residual in the epilogue, and the
// quantisation of activation rows. Contracts: linear_isa.h; packing: pack_weights.h; numerics: docs/numerics.md 0 to 3.
// Pure functions on the caller's memory, any thread that holds a DenormalsOff.

#include "compute/kernels/isa.h"
#include "compute/kernels/linear_isa.h"

namespace tandem::kernels {

using LinearKernels = tk_linear_kernels;

// The kernels of an instruction set that this machine supports (is_supported).
const LinearKernels& linear_kernels(Isa isa);

// The raw sums of one panel for the rows of a tile.
inline void linear_panel(const LinearKernels& kernels, const tk_linear& linear, uint32_t panel_index,
                         const tk_tile& tile) {
  kernels.panel[linear.format.kind](&linear, panel_index, &tile);
}

}  // namespace tandem::kernels
