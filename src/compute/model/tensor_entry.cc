#include "compute/model/tensor_entry.h"

namespace tandem::model {

uint64_t TensorEntry::num_elements() const {
  uint64_t product = 1;
  for (const uint64_t dimension : shape) product *= dimension;
  return product;
}

uint64_t TensorEntry::num_rows() const { return shape.empty() ? 1 : num_elements() / shape.back(); }

}  // namespace tandem::model
