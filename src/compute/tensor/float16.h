#pragma once
// Conversions between f32 and the 16-bit floats, in integer arithmetic: exact, round to nearest even, and the same
// on every thread, also where the FPU flushes denormals. Any thread.

#include <bit>
#include <cstdint>

namespace tandem::tensor {

inline float f32_from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t fraction = half & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  if (fraction == 0) return std::bit_cast<float>(sign);
  // A subnormal half is fraction * 2^-24, a normal f32: shift its leading one into the hidden bit.
  const auto shift = static_cast<uint32_t>(std::countl_zero(fraction)) - 21;
  return std::bit_cast<float>(sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3FFu) << 13));
}

// Too large becomes infinity; a NaN stays a (quiet) NaN.
inline uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x1FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x33000000u) return sign;                                    // below 2^-25: zero
  uint32_t kept = 0;
  uint32_t shift = 13;
  if (magnitude >= 0x38800000u) {
    kept = magnitude - (112u << 23);
  } else {
    kept = (magnitude & 0x7FFFFFu) | 0x800000u;
    shift = 126 - (magnitude >> 23);
  }
  const uint32_t half_ulp = 1u << (shift - 1);
  const uint32_t rounded = kept + half_ulp - 1 + ((kept >> shift) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> shift));
}

inline float f32_from_bf16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

// Too large becomes infinity; a NaN stays a (quiet) NaN.
inline uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace tandem::tensor
