// Int8 linear on AVX2 (numerics 2). Eight outputs a vector; a 32-block is summed exactly in integers, so any order of
// its products gives the same bits. vpmaddubsw adds two u8 x s8 products into 16 bits with saturation; how many such
// sums fit before they must be widened depends on the range of the levels, hence the variants below.

#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {
namespace {

enum Levels {
  kNibbles,      // W4: 0 .. 15, eight sums fit
  kBytesBy4,     // W8, less the smallest level 0 .. 32: four fit
  kBytesBy2,     // W8, less the smallest level 0 .. 64: two fit
  kBytesSigned,  // W8 with zero point 128, any level: |w| <= 128 times q with w's sign, one fits
};

// What does not depend on the eight outputs: pointers to the rows, and per block the terms made of their sums.
template <int kRows>
struct Rows {
  const int8_t* q[kRows];
  const float* scales[kRows];
  const int16_t* sums[kRows];
};

template <int kRows>
TANDEM_INLINE Rows<kRows> rows_at(const tk_linear* a, uint32_t row) {
  Rows<kRows> rows;
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* x = a->x + (row + static_cast<uint32_t>(r)) * a->x_stride;
    rows.q[r] = reinterpret_cast<const int8_t*>(x);
    rows.scales[r] = tk_q8_scales_of(x, a->k);
    rows.sums[r] = tk_q8_sums_of(x, a->k);
  }
  return rows;
}

TANDEM_INLINE __m256i broadcast4(const int8_t* q) {
  int32_t four;
  memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

// Keeps g++ from turning a chain of integer adds into a tree, whose leaves it then spills.
TANDEM_INLINE void keep_order(__m256i& sum) { asm("" : "+x"(sum)); }

TANDEM_INLINE __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// dots[r] = sum of (level - offset) * q over groups kFirst .. kFirst + kNumGroups - 1 (four k each) of one block; for
// kBytesSigned of (level - 128) * q. `levels` is the block's start for these eight outputs.
template <int kLevels, int kFirst, int kNumGroups, int kRows>
TANDEM_INLINE void sum_groups(const uint8_t* levels, const int8_t* const* q, __m256i offset, __m256i* dots) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (kLevels == kNibbles) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i pairs[kRows];
#pragma GCC unroll 4
    for (int j = kFirst / 2; j < (kFirst + kNumGroups) / 2; ++j) {
      const __m256i both = load256(levels + 128 * j);
      const __m256i low = _mm256_and_si256(both, mask);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256i first = _mm256_maddubs_epi16(low, broadcast4(q[r] + 8 * j));
        pairs[r] = j == kFirst / 2 ? first : _mm256_add_epi16(pairs[r], first);
        keep_order(pairs[r]);
        pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(high, broadcast4(q[r] + 8 * j + 4)));
        keep_order(pairs[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) dots[r] = _mm256_madd_epi16(pairs[r], ones);
  } else if constexpr (kLevels == kBytesSigned) {
#pragma GCC unroll 8
    for (int i = kFirst; i < kFirst + kNumGroups; ++i) {
      const __m256i weights = _mm256_xor_si256(load256(levels + 128 * i), offset);
      const __m256i magnitudes = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256i signed_q = _mm256_sign_epi8(broadcast4(q[r] + 4 * i), weights);
        const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, signed_q), ones);
        dots[r] = i == kFirst ? products : _mm256_add_epi32(dots[r], products);
        keep_order(dots[r]);
      }
    }
  } else {
    constexpr int kStep = kLevels == kBytesBy4 ? 4 : 2;
    __m256i pairs[kRows];
#pragma GCC unroll 8
    for (int i = kFirst; i < kFirst + kNumGroups; ++i) {
      const __m256i weights = _mm256_sub_epi8(load256(levels + 128 * i), offset);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256i products = _mm256_maddubs_epi16(weights, broadcast4(q[r] + 4 * i));
        pairs[r] = i % kStep == 0 ? products : _mm256_add_epi16(pairs[r], products);
        keep_order(pairs[r]);
        if (i % kStep != kStep - 1) continue;
        const __m256i wide = _mm256_madd_epi16(pairs[r], ones);
        dots[r] = i < kFirst + kStep ? wide : _mm256_add_epi32(dots[r], wide);
      }
    }
  }
}

// Eight scales or minima from `index` on.
TANDEM_INLINE __m256 fields_at(const tk_panel_format* f, const uint8_t* fields, int index) {
  if (f->scale_f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(fields) + index);
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(fields + 2 * index)));
}

// One half of a block (or the whole, with one scale) for eight outputs: groups kFirst .. of four k.
template <int kLevels, int kHalf, int kHalves, int kRows>
TANDEM_INLINE void add_half(const tk_panel_format* f, const uint8_t* block, int outputs, const int8_t* const* q,
                            __m256i offset, const int32_t (*zeros)[kRows], const float* scales,
                            const float (*scaled_sums)[kRows], __m256* sums) {
  __m256i dots[kRows];
  sum_groups<kLevels, 8 / kHalves * kHalf, 8 / kHalves, kRows>(block + 4 * outputs, q, offset, dots);
  const uint8_t* fields = block + (kLevels == kNibbles ? 512 : 1024);
  const __m256 scale = fields_at(f, fields, 32 * kHalf + outputs);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (kLevels != kBytesSigned) dots[r] = _mm256_sub_epi32(dots[r], _mm256_set1_epi32(zeros[kHalf][r]));
    sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_mul_ps(scale, _mm256_set1_ps(scales[r])), sums[r]);
  }
  if (!f->has_min) return;
  const __m256 minimum = fields_at(f, fields + tk_scales_bytes(f), 32 * kHalf + outputs);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(scaled_sums[kHalf][r]), sums[r]);
}

// sums[g][r] += block b, for outputs 8g .. 8g + 7 of the panel.
template <int kLevels, int kHalves, int kRows>
TANDEM_INLINE void add_block(const tk_panel_format* f, const uint8_t* block, const Rows<kRows>& rows, uint32_t b,
                             __m256 (*sums)[kRows]) {
  const int8_t* q[kRows];
  int32_t zeros[kHalves][kRows];
  float scales[kRows];
  float scaled_sums[kHalves][kRows];
  const int zero_point = kLevels == kNibbles ? f->zero_point : f->zero_point - f->level_min;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    q[r] = rows.q[r] + 32 * b;
    scales[r] = rows.scales[r][b];
    const int32_t first = rows.sums[r][2 * b];
    const int32_t second = rows.sums[r][2 * b + 1];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      const int32_t sum = kHalves == 1 ? first + second : h == 0 ? first : second;
      zeros[h][r] = zero_point * sum;
      scaled_sums[h][r] = scales[r] * static_cast<float>(sum);
    }
  }
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(kLevels == kBytesSigned ? 128 : f->level_min));
  const auto add_outputs = [&](int g) __attribute__((always_inline)) {
    // Keeps g++ from hoisting all broadcasts of q out of the loop over g, and spilling them.
    for (int r = 0; r < kRows; ++r) asm("" : "+r"(q[r]));
    add_half<kLevels, 0, kHalves, kRows>(f, block, 8 * g, q, offset, zeros, scales, scaled_sums, sums[g]);
    if constexpr (kHalves == 2) {
      add_half<kLevels, 1, kHalves, kRows>(f, block, 8 * g, q, offset, zeros, scales, scaled_sums, sums[g]);
    }
  };
  if constexpr (kRows == 1) {  // all sums stay in registers
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) add_outputs(g);
  } else {
#pragma GCC unroll 1
    for (int g = 0; g < 4; ++g) add_outputs(g);
  }
}

template <int kLevels, int kHalves, int kRows>
__attribute__((noinline)) void int8_tile(const tk_linear* a, const uint8_t* panel, uint32_t row, float* out,
                                         uint32_t ld) {
  const tk_panel_format format = a->format;
  const Rows<kRows> rows = rows_at<kRows>(a, row);
  const uint32_t block_bytes = tk_block_bytes(&format);
  const uint32_t length = a->k / 32 / a->segments;
  __m256 waiting[4][4][kRows];  // finished subtrees of 1, 2, 4, 8 segments that wait for their right neighbour
  __m256 sums[4][kRows];
  for (uint32_t s = 0; s < a->segments; ++s) {
    for (int g = 0; g < 4; ++g) {
      for (int r = 0; r < kRows; ++r) sums[g][r] = _mm256_setzero_ps();
    }
    for (uint32_t b = s * length; b < (s + 1) * length; ++b) {
      add_block<kLevels, kHalves, kRows>(&format, panel, rows, b, sums);
      panel += block_bytes;
    }
    int level = 0;
    for (uint32_t t = s; t & 1; t >>= 1, ++level) {
      for (int g = 0; g < 4; ++g) {
        for (int r = 0; r < kRows; ++r) sums[g][r] = _mm256_add_ps(waiting[level][g][r], sums[g][r]);
      }
    }
    if (s + 1 < a->segments) memcpy(waiting[level], sums, sizeof sums);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < 4; ++g) _mm256_storeu_ps(out + static_cast<size_t>(r) * ld + 8 * g, sums[g][r]);
  }
}

template <int kLevels, int kHalves>
void int8_panel(const tk_linear* a, uint32_t panel_index, const tk_tile* tile) {
  const uint8_t* panel = a->panels + panel_index * a->panel_bytes;
  float* out = tile->values;
  uint32_t row = tile->row_begin;
  while (row < tile->row_end) {
    const uint32_t left = tile->row_end - row;
    uint32_t num_rows = 1;
    if (left >= 4) {
      num_rows = 4;
      int8_tile<kLevels, kHalves, 4>(a, panel, row, out, tile->ld);
    } else if (left >= 2) {
      num_rows = 2;
      int8_tile<kLevels, kHalves, 2>(a, panel, row, out, tile->ld);
    } else {
      int8_tile<kLevels, kHalves, 1>(a, panel, row, out, tile->ld);
    }
    row += num_rows;
    out += static_cast<size_t>(num_rows) * tile->ld;
  }
}

template <int kLevels>
void int8_levels(const tk_linear* a, uint32_t panel_index, const tk_tile* tile) {
  if (a->format.num_scales == 2) {
    int8_panel<kLevels, 2>(a, panel_index, tile);
  } else {
    int8_panel<kLevels, 1>(a, panel_index, tile);
  }
}

}  // namespace

void tk_panel_int8_avx2(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const tk_panel_format* f = &linear->format;
  const int range = f->level_max - f->level_min;
  if (f->kind == TK_PANEL_W4) {
    int8_levels<kNibbles>(linear, panel_index, tile);
  } else if (range <= 32) {
    int8_levels<kBytesBy4>(linear, panel_index, tile);
  } else if (range <= 64) {
    int8_levels<kBytesBy2>(linear, panel_index, tile);
  } else {
    int8_levels<kBytesSigned>(linear, panel_index, tile);
  }
}

}  // namespace tandem::kernels
