#pragma once
// One row of the embedding matrix as f32 (numerics 8): the dequantised weights, nothing else. Pure, any thread.

#include <cstdint>

#include "compute/tensor/dequantize.h"

namespace tandem::kernels {

// `matrix` holds rows of `n` weights (whole blocks of `dtype`), one after the other; `out` gets n floats.
inline void embed_row(tensor::DType dtype, const void* matrix, uint64_t row, uint32_t n, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(matrix);
  tensor::dequantize_row(dtype, bytes + row * tensor::row_bytes(dtype, n), n, out);
}

}  // namespace tandem::kernels
