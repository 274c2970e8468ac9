#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#include "base/exp2_isa.h"
#include "compute/sampling/softmax_isa.h"

static inline __m256 exp2_of(__m256 x) {
  const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(x, n);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(TK_EXP2_C5), r, _mm256_set1_ps(TK_EXP2_C4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  return _mm256_and_ps(scaled, _mm256_cmp_ps(x, _mm256_set1_ps(TK_EXP2_MIN), _CMP_GE_OQ));
}

void tandem_softmax_weights_avx2(const float* x, size_t n, float max, float temperature, float* exponents,
                                 float* weights) {
  const __m256 maxes = _mm256_set1_ps(max);
  const __m256 temperatures = _mm256_set1_ps(temperature);
  const __m256 log2e = _mm256_set1_ps(TK_LOG2E);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 z = _mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), maxes), temperatures);
    const __m256 t = _mm256_mul_ps(z, log2e);
    _mm256_storeu_ps(exponents + i, t);
    _mm256_storeu_ps(weights + i, exp2_of(t));
  }
  if (i < n) {
    // The tail goes through a whole vector of its own: one code path, one rounding.
    float in[8], t[8], w[8];
    for (int k = 0; k < 8; ++k) in[k] = max;
    memcpy(in, x + i, (n - i) * sizeof(float));
    tandem_softmax_weights_avx2(in, 8, max, temperature, t, w);
    memcpy(exponents + i, t, (n - i) * sizeof(float));
    memcpy(weights + i, w, (n - i) * sizeof(float));
  }
}
