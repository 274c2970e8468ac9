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

// The largest SEG of numerics 2: a power of two <= 16 that divides `num_blocks` (of 32 k) and, where the input is heads
// side by side, `num_heads` (else pass 0).
inline uint32_t linear_segments(uint32_t num_blocks, uint32_t num_heads) {
  uint32_t segments = 16;
  while (num_blocks % segments != 0 || num_heads % segments != 0) segments /= 2;
  return segments;
}

}  // namespace tandem::kernels
