#pragma once
// exp2 and exp as the numerics contract defines them (docs/numerics.md 0): no libm, the same bits in every build.
//
// n = rint(x), r = x - n, Horner of degree 5 with fma, n added to the exponent as an integer. This is the scalar
// form; kernels for an instruction set repeat it with the same constants and the same order.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tandem {

inline constexpr float kExp2C1 = 0.6931471805f;
inline constexpr float kExp2C2 = 0.2402264923f;
inline constexpr float kExp2C3 = 0.0555033247f;
inline constexpr float kExp2C4 = 0.0096181291f;
inline constexpr float kExp2C5 = 0.0013333558f;
inline constexpr float kLog2E = 1.44269504f;  // the float nearest to log2(e)

// 2^x; 0 below -126 (and for NaN), infinity from 128 on, exactly 1 at 0. Relative error up to 3.5e-6.
inline float exp2_contract(float x) {
  if (!(x >= -126.0f)) return 0.0f;
  if (x >= 128.0f) return INFINITY;
  const float n = std::nearbyint(x);
  const float r = x - n;
  float p = std::fma(kExp2C5, r, kExp2C4);
  p = std::fma(p, r, kExp2C3);
  p = std::fma(p, r, kExp2C2);
  p = std::fma(p, r, kExp2C1);
  p = std::fma(p, r, 1.0f);
  uint32_t bits;
  std::memcpy(&bits, &p, sizeof bits);
  bits += static_cast<uint32_t>(static_cast<int32_t>(n)) << 23;
  std::memcpy(&p, &bits, sizeof bits);
  return p;
}

// e^x = exp2(fl(x * log2 e)).
inline float exp_contract(float x) { return exp2_contract(x * kLog2E); }

}  // namespace tandem
