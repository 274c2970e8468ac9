#include "compute/kernels/log_sum_exp.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace tandem::kernels {

void segment_sums(const ElementKernels& kernels, uint32_t n, const float* x, float max,
                  float sums[kVocabularySegments]) {
  const uint32_t size = vocabulary_segment_size(n);
  for (uint32_t segment = 0; segment < kVocabularySegments; ++segment) {
    const uint32_t begin = std::min(n, segment * size);
    const uint32_t end = std::min(n, begin + size);
    sums[segment] = kernels.sum_exp(end - begin, x + begin, max);
  }
}

double portable_log(double x) {
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(z), z = (m - 1) / (m + 1), |z| <= 0.1716.
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m >= kSqrt2) {
    m *= 0.5;
    exponent += 1;
  }
  const double z = (m - 1.0) / (m + 1.0);
  const double z2 = z * z;
  double series = 0.0;
  for (int k = 12; k >= 1; --k) series = (series + 1.0 / (2 * k + 1)) * z2;
  return exponent * kLn2 + 2.0 * (z + z * series);
}

float join_log_sum_exp(float max, const float sums[kVocabularySegments]) {
  float tree[kVocabularySegments];
  std::copy(sums, sums + kVocabularySegments, tree);
  for (uint32_t width = kVocabularySegments / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) tree[i] = tree[2 * i] + tree[2 * i + 1];
  }
  return static_cast<float>(static_cast<double>(max) + portable_log(static_cast<double>(tree[0])));
}

float log_sum_exp(const ElementKernels& kernels, uint32_t n, const float* x) {
  const tk_argmax largest = kernels.argmax(n, x);
  if (!largest.is_valid) return std::numeric_limits<float>::quiet_NaN();
  float sums[kVocabularySegments];
  segment_sums(kernels, n, x, largest.value, sums);
  return join_log_sum_exp(largest.value, sums);
}

}  // namespace tandem::kernels
