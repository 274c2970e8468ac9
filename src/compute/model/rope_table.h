#pragma once
// The rotary position table: f32 values of double computations, part of the numerics fingerprint (docs/numerics.md 5).

#include <cstdint>
#include <vector>

#include "compute/model/model_config.h"

namespace tandem::model {

// Rotation per position of each of head_dim / 2 pairs, after scaling and freq_factors; radians.
std::vector<double> rope_frequencies(const RopeConfig& rope, uint32_t head_dim);

// [num_positions][2][head_dim / 2]: per position all cosines, then all sines, times yarn's attention factor.
std::vector<float> rope_cos_sin(const RopeConfig& rope, uint32_t head_dim, uint32_t num_positions);

}  // namespace tandem::model
