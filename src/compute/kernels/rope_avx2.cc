#include <immintrin.h>

#include "compute/kernels/rope_isa.h"

namespace tandem::kernels {
namespace {

// Four pairs a0 b0 a1 b1 ...: even lanes a*c - b*s, odd lanes a*s + b*c, by one multiplication and one fmaddsub.
inline __m256 rotate_adjacent(__m256 v, __m128 c, __m128 s) {
  const __m256 cs = _mm256_set_m128(_mm_unpackhi_ps(c, s), _mm_unpacklo_ps(c, s));
  const __m256 sc = _mm256_set_m128(_mm_unpackhi_ps(s, c), _mm_unpacklo_ps(s, c));
  return _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), cs, _mm256_mul_ps(_mm256_movehdup_ps(v), sc));
}

}  // namespace

void tk_rope_avx2(const tk_rope* shape, const float* table, const float* in, float* out) {
  const uint32_t half = shape->rotary_dim / 2;
  const float* cosines = table;
  const float* sines = table + half;
  uint32_t i = 0;
  if (shape->pairing == TK_ROPE_ADJACENT) {
    for (; i + 4 <= half; i += 4) {
      const __m256 v = _mm256_loadu_ps(in + 2 * i);
      _mm256_storeu_ps(out + 2 * i, rotate_adjacent(v, _mm_loadu_ps(cosines + i), _mm_loadu_ps(sines + i)));
    }
  } else {
    for (; i + 8 <= half; i += 8) {
      const __m256 a = _mm256_loadu_ps(in + i);
      const __m256 b = _mm256_loadu_ps(in + half + i);
      const __m256 c = _mm256_loadu_ps(cosines + i);
      const __m256 s = _mm256_loadu_ps(sines + i);
      _mm256_storeu_ps(out + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
      _mm256_storeu_ps(out + half + i, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
  }
  const bool is_adjacent = shape->pairing == TK_ROPE_ADJACENT;
  for (; i < half; ++i) {
    const uint32_t first = is_adjacent ? 2 * i : i;
    const uint32_t second = is_adjacent ? 2 * i + 1 : i + half;
    const float a = in[first];
    const float b = in[second];
    out[first] = __builtin_fmaf(a, cosines[i], -(b * sines[i]));
    out[second] = __builtin_fmaf(a, sines[i], b * cosines[i]);
  }
  for (i = shape->rotary_dim; i < shape->head_dim; ++i) out[i] = in[i];
}

}  // namespace tandem::kernels
