#pragma once
// Our exp2, exp and SiLU (numerics 0 and 5): the one definition that every instruction set follows bit for bit.
// Vector forms: exp2_avx2_isa.h, exp2_avx512_isa.h.
//
// n = rint(x), r = x - n, Horner of degree 5 in r with fma, exponent added as an integer. x < -126 and NaN give 0
// (no denormals, and a masked score of -inf weighs nothing); x >= 128 gives +inf; exp2(0) is exactly 1.
// The coefficients: base/exp2_isa.h.

#include <stdint.h>
#include <string.h>

#include "base/exp2_isa.h"

// Round to nearest even for |x| < 2^22, without a call.
static inline float tk_rint(float x) { return (x + 12582912.0f) - 12582912.0f; }

static inline float tk_exp2(float x) {
  if (!(x >= TK_EXP2_MIN)) return 0.0f;
  if (x >= TK_EXP2_MAX) return __builtin_inff();
  const float n = tk_rint(x);
  const float r = x - n;
  float p = TK_EXP2_C5;
  p = __builtin_fmaf(p, r, TK_EXP2_C4);
  p = __builtin_fmaf(p, r, TK_EXP2_C3);
  p = __builtin_fmaf(p, r, TK_EXP2_C2);
  p = __builtin_fmaf(p, r, TK_EXP2_C1);
  p = __builtin_fmaf(p, r, 1.0f);
  uint32_t bits;
  memcpy(&bits, &p, sizeof bits);
  bits += (uint32_t)(int32_t)n << 23;
  memcpy(&p, &bits, sizeof p);
  return p;
}

static inline float tk_exp(float x) { return tk_exp2(x * TK_LOG2E); }

static inline float tk_silu(float x) { return x / (1.0f + tk_exp(-x)); }
