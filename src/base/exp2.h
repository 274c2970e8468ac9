#pragma once
// exp2 and exp as the numerics contract defines them (docs/numerics.md 0): no libm, the same bits in every build.
//
// n = rint(x), r = x - n, Horner of degree 5 with fma, n added to the exponent as an integer. This is the scalar
// form; kernels for an instruction set repeat it with the same constants and the same order.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/exp2_isa.h"

namespace tandem {

// 2^x; 0 below -126 (and for NaN), infinity from 128 on, exactly 1 at 0. Relative error up to 1.6e-7.
inline float exp2_contract(float x) {
  if (!(x >= -126.0f)) return 0.0f;
  if (x >= 128.0f) return INFINITY;
  const float n = std::nearbyint(x);
  const float r = x - n;
  float p = std::fma(TK_EXP2_C5, r, TK_EXP2_C4);
  p = std::fma(p, r, TK_EXP2_C3);
  p = std::fma(p, r, TK_EXP2_C2);
  p = std::fma(p, r, TK_EXP2_C1);
  p = std::fma(p, r, 1.0f);
  uint32_t bits;
  std::memcpy(&bits, &p, sizeof bits);
  bits += static_cast<uint32_t>(static_cast<int32_t>(n)) << 23;
  std::memcpy(&p, &bits, sizeof bits);
  return p;
}

// e^x = exp2(fl(x * log2 e)).
inline float exp_contract(float x) { return exp2_contract(x * TK_LOG2E); }

}  // namespace tandem
