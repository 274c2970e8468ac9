#include "compute/kernels/rope_table.h"

#include <cmath>

namespace tandem::kernels {

std::vector<float> make_rope_table(std::span<const double> inverse_frequencies, double magnitude,
                                   uint32_t num_positions) {
  const size_t half = inverse_frequencies.size();
  std::vector<float> table(size_t{num_positions} * 2 * half);
  for (uint32_t position = 0; position < num_positions; ++position) {
    float* row = table.data() + size_t{position} * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const double angle = position * inverse_frequencies[i];
      row[i] = static_cast<float>(std::cos(angle) * magnitude);
      row[half + i] = static_cast<float>(std::sin(angle) * magnitude);
    }
  }
  return table;
}

}  // namespace tandem::kernels
