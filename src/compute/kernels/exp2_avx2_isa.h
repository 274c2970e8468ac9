#pragma once
// exp2_isa.h for eight floats. For files built for AVX2 and FMA.

#include <immintrin.h>

#include "compute/kernels/exp2_isa.h"

static inline __attribute__((always_inline)) __m256 tk_exp2_avx2(__m256 x) {
  const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(x, n);
  __m256 p = _mm256_set1_ps(TK_EXP2_C5);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TK_EXP2_C1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  p = _mm256_blendv_ps(p, _mm256_set1_ps(__builtin_inff()), _mm256_cmp_ps(x, _mm256_set1_ps(TK_EXP2_MAX), _CMP_GE_OQ));
  return _mm256_and_ps(p, _mm256_cmp_ps(x, _mm256_set1_ps(TK_EXP2_MIN), _CMP_GE_OQ));
}

static inline __attribute__((always_inline)) __m256 tk_exp_avx2(__m256 x) {
  return tk_exp2_avx2(_mm256_mul_ps(x, _mm256_set1_ps(TK_LOG2E)));
}

static inline __attribute__((always_inline)) __m256 tk_silu_avx2(__m256 x) {
  const __m256 e = tk_exp_avx2(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}
