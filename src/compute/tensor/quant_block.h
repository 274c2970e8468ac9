#pragma once
// The inside of the block-quantised types, 32 weights at a time: what a packer needs to build its own layout without
// changing a single dequantised bit. Pure functions, any thread.

#include <cstdint>

#include "compute/tensor/dtype.h"

namespace tandem::tensor {

// What all blocks of a type share.
struct QuantTraits {
  uint8_t bits;          // 4 or 8: what a stored level needs
  uint8_t zero_point;    // 128, 8 or 0: the integer weight is level - zero_point
  uint8_t num_scales;    // per 32 weights: 1, or 2 (one for each 16)
  bool has_min;          // a minimum is added after scaling
  bool fields_are_f16;   // scale and minimum are exactly f16 values
};

// A quantised type's traits; not for the float types.
QuantTraits quant_traits(DType dtype);

// 32 weights. Weight i = fl(fl(scale[s] * (level[i] - zero_point)) + min[s]), with s = 0 for num_scales 1 and
// s = i / 16 for 2; the addition only with has_min. `scale` and `min` are exact f32 products of the file's fields, min
// with its sign turned where the format subtracts. With num_scales 1 the second entries repeat the first.
struct QuantBlock32 {
  uint8_t level[32];
  float scale[2];
  float min[2];
  uint8_t bits;
  uint8_t zero_point;
  uint8_t num_scales;
  bool has_min;
};

// Decodes weights 32 * index .. 32 * index + 31 of a row of a quantised type. `row` needs no alignment.
void decode_block32(DType dtype, const void* row, uint64_t block32_index, QuantBlock32* out);

}  // namespace tandem::tensor
