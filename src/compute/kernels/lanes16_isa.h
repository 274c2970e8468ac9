#pragma once
// "lanes16" of the numerics contract: 16 partial sums, element i in lane i mod 16, joined as lane i + lane i+8, then
// +4, +2, +1. The vector forms take lanes 0..7 and 8..15.

// Overwrites `lanes` (16 floats).
static inline float tk_join_lanes16(float* lanes) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
  }
  return lanes[0];
}

#if defined(__AVX2__)
#include <immintrin.h>

static inline float tk_join_lanes16_avx2(__m256 low, __m256 high) {
  const __m256 by8 = _mm256_add_ps(low, high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
#endif
