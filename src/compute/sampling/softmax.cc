#include "compute/sampling/softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/exp2.h"
#include "compute/sampling/softmax_isa.h"

namespace tandem::sampling {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kSegments = 16;

float lanes16_sum(std::span<const float> values) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) lanes[lane] += values[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

bool has_avx2() {
  static const bool kHas = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kHas;
}

}  // namespace

Result<float> checked_max(std::span<const float> logits) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  constexpr uint32_t kMinusInfinityBits = 0xff800000;
  float lanes[kLanes];
  uint32_t bad[kLanes] = {};
  for (float& lane : lanes) lane = -INFINITY;
  const auto see = [&](size_t lane, float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    bad[lane] |= static_cast<uint32_t>((bits & 0x7fffffff) >= kInfinityBits) & (bits != kMinusInfinityBits);
    lanes[lane] = x > lanes[lane] ? x : lanes[lane];
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) see(lane, logits[i + lane]);
  }
  for (; i < logits.size(); ++i) see(i % kLanes, logits[i]);
  if (*std::max_element(bad, bad + kLanes) != 0) {
    return Error{ErrorCode::kInternal, "a logit is not a finite number; this request cannot go on"};
  }
  const float best = *std::max_element(lanes, lanes + kLanes);
  if (best == -INFINITY) return Error{ErrorCode::kInternal, "no token can be chosen: every logit is minus infinity"};
  return best;
}

void softmax_weights_plain(std::span<const float> x, float max, float temperature, std::span<float> exponents,
                           std::span<float> weights) {
  for (size_t i = 0; i < x.size(); ++i) {
    const float t = ((x[i] - max) / temperature) * TK_LOG2E;
    exponents[i] = t;
    weights[i] = exp2_contract(t);
  }
}

void softmax_weights(std::span<const float> x, float max, float temperature, std::span<float> exponents,
                     std::span<float> weights) {
  if (has_avx2()) {
    tandem_softmax_weights_avx2(x.data(), x.size(), max, temperature, exponents.data(), weights.data());
  } else {
    softmax_weights_plain(x, max, temperature, exponents, weights);
  }
}

float vocabulary_sum(std::span<const float> values) {
  const size_t length = (values.size() + kSegments - 1) / kSegments;
  float sums[kSegments] = {};
  for (size_t segment = 0; segment < kSegments; ++segment) {
    const size_t begin = std::min(segment * length, values.size());
    sums[segment] = lanes16_sum(values.subspan(begin, std::min(length, values.size() - begin)));
  }
  for (size_t width = kSegments; width > 1; width /= 2) {
    for (size_t k = 0; k < width / 2; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
  }
  return sums[0];
}

}  // namespace tandem::sampling
