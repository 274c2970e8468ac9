#pragma once
// TensorEntry: one tensor of a weight file. Borrows its bytes from the mapping, which WeightFiles owns.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compute/tensor/dtype.h"

namespace tandem::model {

struct TensorEntry {
  std::string name;
  tensor::DType dtype;
  std::vector<uint64_t> shape;     // row-major: back() is the contiguous dimension (GGUF's list reversed)
  std::span<const uint8_t> bytes;  // exactly the tensor; no alignment promised for safetensors
  std::string file;                // path of the file that holds it, for messages

  uint64_t num_elements() const;   // the parsers have checked that the product fits
  uint64_t num_rows() const;       // product of all dimensions but the last; 1 for vectors
};

}  // namespace tandem::model
