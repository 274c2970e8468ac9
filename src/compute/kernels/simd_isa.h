#pragma once
// The x86 intrinsics, for files built for one instruction set. Compiled with TANDEM_SIMDE the AVX-512 files become code
// that runs on AVX2 (SIMDe, plus what it lacks below), so that their results are tested on machines without AVX-512;
// such a build exists for tests only and its exported names end in _simde, so that both can be linked into one program.

#include <stdint.h>
#include <string.h>

#ifdef TANDEM_SIMDE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#define TANDEM_ISA_SYMBOL(name) name##_simde
#else
#include <immintrin.h>
#define TANDEM_ISA_SYMBOL(name) name
#endif

#define TANDEM_INLINE static inline __attribute__((always_inline))

#ifdef TANDEM_SIMDE

TANDEM_INLINE __m256i tk_half_i(__m512i v, int half) {
  __m256i out;
  memcpy(&out, reinterpret_cast<const char*>(&v) + 32 * half, 32);
  return out;
}

TANDEM_INLINE __m256 tk_half_ps(__m512 v, int half) {
  __m256 out;
  memcpy(&out, reinterpret_cast<const char*>(&v) + 32 * half, 32);
  return out;
}

TANDEM_INLINE __m512i tk_join_i(__m256i low, __m256i high) {
  __m512i out;
  memcpy(&out, &low, 32);
  memcpy(reinterpret_cast<char*>(&out) + 32, &high, 32);
  return out;
}

TANDEM_INLINE __m512 tk_join_ps(__m256 low, __m256 high) {
  __m512 out;
  memcpy(&out, &low, 32);
  memcpy(reinterpret_cast<char*>(&out) + 32, &high, 32);
  return out;
}

// u8 x s8, four products into each int32, without saturation.
TANDEM_INLINE __m256i tk_dpbusd256(__m256i acc, __m256i u, __m256i s) {
  const __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0xFF)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}

#define TK_DPBUSD(acc, u, s)                                                           \
  (acc) = tk_join_i(tk_dpbusd256(tk_half_i(acc, 0), tk_half_i(u, 0), tk_half_i(s, 0)), \
                    tk_dpbusd256(tk_half_i(acc, 1), tk_half_i(u, 1), tk_half_i(s, 1)))

// vdpbf16ps as Zen 5 computes it: the odd element's fma, then the even one's. The instruction flushes denormals
// whatever MXCSR says; here the caller's MXCSR has to say so, as it does for all kernels.
TANDEM_INLINE __m256 tk_dpbf16_256(__m256 acc, __m256i a, __m256i b) {
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m256 a_odd = _mm256_castsi256_ps(_mm256_and_si256(a, odd));
  const __m256 b_odd = _mm256_castsi256_ps(_mm256_and_si256(b, odd));
  const __m256 a_even = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
  const __m256 b_even = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
  return _mm256_fmadd_ps(a_even, b_even, _mm256_fmadd_ps(a_odd, b_odd, acc));
}

TANDEM_INLINE __m512 tk_dpbf16(__m512 acc, __m512i a, __m512i b) {
  return tk_join_ps(tk_dpbf16_256(tk_half_ps(acc, 0), tk_half_i(a, 0), tk_half_i(b, 0)),
                    tk_dpbf16_256(tk_half_ps(acc, 1), tk_half_i(a, 1), tk_half_i(b, 1)));
}

#define TK_DPBF16(acc, a, b) (acc) = tk_dpbf16(acc, a, b)

// vcvtneps2bf16 of numbers that are finite and not denormal.
TANDEM_INLINE __m256i tk_cvt_bf16(__m512 v) {
  uint32_t bits[16];
  uint16_t halves[16];
  memcpy(bits, &v, 64);
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>((bits[i] + 0x7FFF + (bits[i] >> 16 & 1)) >> 16);
  __m256i out;
  memcpy(&out, halves, 32);
  return out;
}

#define TK_CVT_BF16(v) tk_cvt_bf16(v)

// What SIMDe 0.7.4 does not have.
TANDEM_INLINE __m512 tk_cvtph_ps(__m256i v) {
  return tk_join_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
TANDEM_INLINE __m512 tk_cvtepi32_ps(__m512i v) {
  return tk_join_ps(_mm256_cvtepi32_ps(tk_half_i(v, 0)), _mm256_cvtepi32_ps(tk_half_i(v, 1)));
}
TANDEM_INLINE __m512i tk_cvtps_epi32(__m512 v) {
  return tk_join_i(_mm256_cvtps_epi32(tk_half_ps(v, 0)), _mm256_cvtps_epi32(tk_half_ps(v, 1)));
}
TANDEM_INLINE __m512i tk_cvtepu16_epi32(__m256i v) {
  return tk_join_i(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                   _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
TANDEM_INLINE __m512i tk_cvtepi8_epi32(__m128i v) {
  return tk_join_i(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
}
TANDEM_INLINE __m512i tk_srai_epi32(__m512i v, int count) {
  return tk_join_i(_mm256_srai_epi32(tk_half_i(v, 0), count), _mm256_srai_epi32(tk_half_i(v, 1), count));
}
// Truncating, as the instructions are.
TANDEM_INLINE __m256i tk_cvtepi32_epi16(__m512i v) {
  uint32_t wide[16];
  uint16_t narrow[16];
  memcpy(wide, &v, 64);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<uint16_t>(wide[i]);
  __m256i out;
  memcpy(&out, narrow, 32);
  return out;
}
TANDEM_INLINE __m128i tk_cvtepi32_epi8(__m512i v) {
  uint32_t wide[16];
  uint8_t narrow[16];
  memcpy(wide, &v, 64);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<uint8_t>(wide[i]);
  __m128i out;
  memcpy(&out, narrow, 16);
  return out;
}
TANDEM_INLINE __m512 tk_maskz_loadu_ps(uint16_t mask, const void* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) {
    lanes[i] = 0.0f;
    if ((mask >> i) & 1) memcpy(&lanes[i], static_cast<const char*>(p) + 4 * i, 4);
  }
  __m512 out;
  memcpy(&out, lanes, 64);
  return out;
}
TANDEM_INLINE void tk_mask_storeu_ps(void* p, uint16_t mask, __m512 v) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i) & 1) memcpy(static_cast<char*>(p) + 4 * i, reinterpret_cast<const char*>(&v) + 4 * i, 4);
  }
}

#undef _mm512_cvtph_ps
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_srai_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_extractf32x8_ps
#undef _mm512_extracti32x8_epi32
#define _mm512_cvtph_ps(v) tk_cvtph_ps(v)
#define _mm512_cvtepi32_ps(v) tk_cvtepi32_ps(v)
#define _mm512_cvtps_epi32(v) tk_cvtps_epi32(v)
#define _mm512_srai_epi32(v, count) tk_srai_epi32(v, count)
#define _mm512_cvtepu16_epi32(v) tk_cvtepu16_epi32(v)
#define _mm512_cvtepi8_epi32(v) tk_cvtepi8_epi32(v)
#define _mm512_cvtepi32_epi16(v) tk_cvtepi32_epi16(v)
#define _mm512_cvtepi32_epi8(v) tk_cvtepi32_epi8(v)
#define _mm512_maskz_loadu_ps(mask, p) tk_maskz_loadu_ps(mask, p)
#define _mm512_mask_storeu_ps(p, mask, v) tk_mask_storeu_ps(p, mask, v)
#define _mm512_extractf32x8_ps(v, half) tk_half_ps(v, half)
#define _mm512_extracti32x8_epi32(v, half) tk_half_i(v, half)

#else

// g++ 12 spills the accumulators around the intrinsic, which halves the speed. For _mm512 registers, AVX512-VNNI.
#define TK_DPBUSD(acc, u, s) asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u), "v"(s))

// acc (__m512) += the pairs of bf16 in a and b (__m512i); AVX512-BF16.
#define TK_DPBF16(acc, a, b) (acc) = _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))

// __m512 to sixteen bf16 (__m256i), rounded to nearest even; AVX512-BF16.
#define TK_CVT_BF16(v) reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v))

#endif
