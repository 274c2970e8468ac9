#pragma once
// File weights to f32, bit for bit as the types are defined (gguf-py, gguf.quants): one multiplication order, no fused
// multiply-add. Pure, any thread.

#include <cstdint>

#include "compute/tensor/dtype.h"

namespace tandem::tensor {

// `row` (no alignment needed) holds `num_elements` weights, whole blocks of the type; `out` gets as many floats.
void dequantize_row(DType dtype, const void* row, uint64_t num_elements, float* out);

}  // namespace tandem::tensor
