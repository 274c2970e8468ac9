#include "compute/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace tandem::model {
namespace {

// Long waves are stretched by the factor, short ones kept, those between blended.
// Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
double scale_llama3(const RopeConfig& rope, double frequency) {
  const double turns = rope.original_max_position * frequency / (2 * std::numbers::pi);  // over the trained context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The pairs between which yarn goes over from kept to stretched frequencies.
// Source: YaRN (arXiv 2309.00071), section 3.2; transformers, _compute_yarn_parameters.
struct YarnRange {
  double low;
  double high;
};

YarnRange yarn_range(const RopeConfig& rope, uint32_t head_dim) {
  const auto pair_that_turns = [&](double turns) {
    return head_dim * std::log(rope.original_max_position / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.base));
  };
  double low = pair_that_turns(rope.beta_fast);
  double high = pair_that_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  return {low, high == low ? high + 0.001 : high};
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope, uint32_t head_dim) {
  const uint32_t num_pairs = head_dim / 2;
  TANDEM_CHECK(rope.freq_factors.empty() || rope.freq_factors.size() == num_pairs);
  const YarnRange range = rope.scaling == RopeScaling::kYarn ? yarn_range(rope, head_dim) : YarnRange{0, 1};
  std::vector<double> frequencies(num_pairs);
  for (uint32_t i = 0; i < num_pairs; ++i) {
    double frequency = std::pow(rope.base, -2.0 * i / head_dim);
    if (!rope.freq_factors.empty()) frequency /= double{rope.freq_factors[i]};
    switch (rope.scaling) {
      case RopeScaling::kNone: break;
      case RopeScaling::kLinear: frequency /= rope.factor; break;
      case RopeScaling::kLlama3: frequency = scale_llama3(rope, frequency); break;
      case RopeScaling::kYarn: {
        const double stretched = std::clamp((i - range.low) / (range.high - range.low), 0.0, 1.0);
        frequency = frequency / rope.factor * stretched + frequency * (1 - stretched);
        break;
      }
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

std::vector<float> rope_cos_sin(const RopeConfig& rope, uint32_t head_dim, uint32_t num_positions) {
  const std::vector<double> frequencies = rope_frequencies(rope, head_dim);
  const size_t num_pairs = frequencies.size();
  const double magnitude = rope.scaling == RopeScaling::kYarn ? rope.attention_factor : 1.0;
  std::vector<float> table(size_t{num_positions} * 2 * num_pairs);
  for (uint32_t position = 0; position < num_positions; ++position) {
    float* cosines = table.data() + size_t{position} * 2 * num_pairs;
    float* sines = cosines + num_pairs;
    for (size_t i = 0; i < num_pairs; ++i) {
      const double angle = position * frequencies[i];
      cosines[i] = static_cast<float>(std::cos(angle) * magnitude);
      sines[i] = static_cast<float>(std::sin(angle) * magnitude);
    }
  }
  return table;
}

}  // namespace tandem::model
