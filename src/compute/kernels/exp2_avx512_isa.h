#pragma once
// exp2_isa.h for sixteen floats. For files built for AVX-512; the including file brings the intrinsics
// (compute/kernels/simd_isa.h).

#include "compute/kernels/exp2_isa.h"
#include "compute/kernels/simd_isa.h"

// For x < TK_EXP2_MAX, and 0 for NaN; any bits for larger x.
static inline __attribute__((always_inline)) __m512 tk_exp2_small_avx512(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, 8);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(TK_EXP2_C5);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TK_EXP2_C4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TK_EXP2_C3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TK_EXP2_C2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TK_EXP2_C1));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  const __mmask16 is_above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(TK_EXP2_MIN), _CMP_GE_OQ);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(is_above, _mm512_castps_si512(p), exponent));
}

static inline __attribute__((always_inline)) __m512 tk_exp2_avx512(__m512 x) {
  const __mmask16 is_large = _mm512_cmp_ps_mask(x, _mm512_set1_ps(TK_EXP2_MAX), _CMP_GE_OQ);
  return _mm512_mask_mov_ps(tk_exp2_small_avx512(x), is_large, _mm512_set1_ps(__builtin_inff()));
}

static inline __attribute__((always_inline)) __m512 tk_exp_avx512(__m512 x) {
  return tk_exp2_avx512(_mm512_mul_ps(x, _mm512_set1_ps(TK_LOG2E)));
}

static inline __attribute__((always_inline)) __m512 tk_silu_avx512(__m512 x) {
  const __m512i sign = _mm512_set1_epi32((int)0x80000000u);
  const __m512 negated = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), tk_exp_avx512(negated)));
}
