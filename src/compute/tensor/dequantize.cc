#include "compute/tensor/dequantize.h"

#include <cstring>

#include "base/check.h"
#include "compute/tensor/float16.h"
#include "compute/tensor/quant_block.h"

namespace tandem::tensor {
namespace {

template <float (*kConvert)(uint16_t)>
void widen_row(const uint8_t* row, uint64_t num_elements, float* out) {
  for (uint64_t i = 0; i < num_elements; ++i) {
    uint16_t value;
    memcpy(&value, row + 2 * i, 2);
    out[i] = kConvert(value);
  }
}

void dequantize_block32(const QuantBlock32& block, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int s = i / 16;  // scale[1] repeats scale[0] where a type has one scale
    const float scaled = block.scale[s] * static_cast<float>(block.level[i] - block.zero_point);
    out[i] = block.has_min ? scaled + block.min[s] : scaled;
  }
}

}  // namespace

void dequantize_row(DType dtype, const void* row, uint64_t num_elements, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  switch (dtype) {
    case DType::kF32: memcpy(out, bytes, num_elements * 4); return;
    case DType::kF16: widen_row<f32_from_f16>(bytes, num_elements, out); return;
    case DType::kBF16: widen_row<f32_from_bf16>(bytes, num_elements, out); return;
    default: break;
  }
  TANDEM_CHECK(num_elements % block_elements(dtype) == 0);
  QuantBlock32 block;
  for (uint64_t b = 0; b < num_elements / 32; ++b) {
    decode_block32(dtype, bytes, b, &block);
    dequantize_block32(block, out + 32 * b);
  }
}

}  // namespace tandem::tensor
