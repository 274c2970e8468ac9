#pragma once
// The safetensors format from bytes in memory. Pure: no files, so that tests and fuzzing feed it anything.
// Source: https://github.com/huggingface/safetensors (README, "Format").

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/model/tensor_entry.h"

namespace tandem::model {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;               // as written: "F32", "BF16", "I32", ...
  std::vector<uint64_t> shape;     // row-major, maybe empty (a scalar)
  std::span<const uint8_t> bytes;  // borrows from what was parsed
};

// In the order of the header. Every tensor lies inside the bytes, fits its type and shape, and none overlap.
Result<std::vector<SafetensorsTensor>> parse_safetensors(std::span<const uint8_t> bytes, const std::string& file);

// The same for weights: a type other than F32, F16 or BF16 is an error.
Result<std::vector<TensorEntry>> parse_safetensors_weights(std::span<const uint8_t> bytes, const std::string& file);

}  // namespace tandem::model
