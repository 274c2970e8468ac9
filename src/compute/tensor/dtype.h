#pragma once
// DType: how the weights of a tensor are stored in a file, and how many bytes that takes.
// Source of the block layouts: the GGUF/ggml type list (gguf-py, GGML_QUANT_SIZES).

#include <cstdint>

namespace tandem::tensor {

enum class DType : uint8_t {
  kF32, kF16, kBF16,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0,
  kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K,
  kIQ4_NL, kIQ4_XS,
};
inline constexpr int kNumDTypes = 15;

// "F32", "Q4_K", ...: the names that GGUF tools print.
const char* dtype_name(DType dtype);

// Weights a block holds: 1 for the float types, 32 or 256 for the quantised ones.
uint32_t block_elements(DType dtype);
uint32_t block_bytes(DType dtype);

// True for the types stored in blocks of integers with scales.
inline bool is_quantised(DType dtype) { return dtype >= DType::kQ4_0; }

// Bytes of `num_elements` consecutive weights, which are whole blocks.
uint64_t row_bytes(DType dtype, uint64_t num_elements);

}  // namespace tandem::tensor
