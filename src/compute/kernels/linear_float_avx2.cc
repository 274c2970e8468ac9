// F32 and bf16 linear on AVX2 (numerics 3). Each output is one chain of fused multiply-adds in rising k; a vector holds
// eight outputs, and the chains of different outputs and rows hide each other's latency.

#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {
namespace {

template <int kRows>
struct Sums {
  __m256 v[4][kRows];  // [outputs 8g .. 8g + 7][row]
};

// Runs add_range(begin, end, sums) over each segment of `length` steps, and joins the segments by the tree.
template <int kRows, typename AddRange>
TANDEM_INLINE void sum_segments(uint32_t num_segments, uint32_t length, float* out, uint32_t ld, AddRange add_range) {
  Sums<kRows> waiting[4];  // finished subtrees of 1, 2, 4, 8 segments that wait for their right neighbour
  Sums<kRows> sums;
  for (uint32_t s = 0; s < num_segments; ++s) {
    for (int g = 0; g < 4; ++g) {
      for (int r = 0; r < kRows; ++r) sums.v[g][r] = _mm256_setzero_ps();
    }
    add_range(s * length, (s + 1) * length, &sums);
    int level = 0;
    for (uint32_t t = s; t & 1; t >>= 1, ++level) {
      for (int g = 0; g < 4; ++g) {
        for (int r = 0; r < kRows; ++r) sums.v[g][r] = _mm256_add_ps(waiting[level].v[g][r], sums.v[g][r]);
      }
    }
    if (s + 1 < num_segments) waiting[level] = sums;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < 4; ++g) _mm256_storeu_ps(out + static_cast<size_t>(r) * ld + 8 * g, sums.v[g][r]);
  }
}

template <int kRows>
__attribute__((noinline)) void f32_tile(const tk_linear* a, const uint8_t* panel, uint32_t row, float* out,
                                        uint32_t ld) {
  const float* x[kRows];
  for (uint32_t r = 0; r < kRows; ++r) x[r] = reinterpret_cast<const float*>(a->x + (row + r) * a->x_stride);
  const auto* weights = reinterpret_cast<const float*>(panel);
  sum_segments<kRows>(a->segments, a->k / a->segments, out, ld, [&](uint32_t begin, uint32_t end, Sums<kRows>* total) {
    Sums<kRows> sums = *total;
    for (uint32_t k = begin; k < end; ++k) {
      const float* w = weights + static_cast<size_t>(k) * TK_PANEL_ROWS;
      __m256 value[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) value[r] = _mm256_set1_ps(x[r][k]);
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) {
        const __m256 weight = _mm256_loadu_ps(w + 8 * g);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums.v[g][r] = _mm256_fmadd_ps(value[r], weight, sums.v[g][r]);
      }
    }
    *total = sums;
  });
}

// A bf16 is the upper half of an f32: of a pair, the odd element is masked out in place, the even one shifted up.
TANDEM_INLINE __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
TANDEM_INLINE __m256 even_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }

template <int kRows>
__attribute__((noinline)) void bf16_tile(const tk_linear* a, const uint8_t* panel, uint32_t row, float* out,
                                         uint32_t ld) {
  const uint8_t* x[kRows];
  for (uint32_t r = 0; r < kRows; ++r) x[r] = a->x + (row + r) * a->x_stride;
  const uint32_t length = (a->k + 1) / 2 / a->segments;
  sum_segments<kRows>(a->segments, length, out, ld, [&](uint32_t begin, uint32_t end, Sums<kRows>* total) {
    Sums<kRows> sums = *total;
    for (uint32_t pair = begin; pair < end; ++pair) {
      const uint8_t* w = panel + static_cast<size_t>(pair) * 4 * TK_PANEL_ROWS;
      __m256 odd[kRows];
      __m256 even[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        int32_t both;
        memcpy(&both, x[r] + static_cast<size_t>(pair) * 4, 4);
        odd[r] = odd_of(_mm256_set1_epi32(both));
        even[r] = even_of(_mm256_set1_epi32(both));
      }
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * g));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          sums.v[g][r] = _mm256_fmadd_ps(odd[r], odd_of(pairs), sums.v[g][r]);
          sums.v[g][r] = _mm256_fmadd_ps(even[r], even_of(pairs), sums.v[g][r]);
        }
      }
    }
    *total = sums;
  });
}

}  // namespace

void tk_panel_f32_avx2(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const uint8_t* panel = linear->panels + panel_index * linear->panel_bytes;
  for (uint32_t row = tile->row_begin; row < tile->row_end;) {
    float* out = tile->values + static_cast<size_t>(row - tile->row_begin) * tile->ld;
    const uint32_t left = tile->row_end - row;
    if (left >= 3) {
      f32_tile<3>(linear, panel, row, out, tile->ld);
      row += 3;
    } else if (left == 2) {
      f32_tile<2>(linear, panel, row, out, tile->ld);
      row += 2;
    } else {
      f32_tile<1>(linear, panel, row, out, tile->ld);
      row += 1;
    }
  }
}

void tk_panel_bf16_avx2(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const uint8_t* panel = linear->panels + panel_index * linear->panel_bytes;
  for (uint32_t row = tile->row_begin; row < tile->row_end;) {
    float* out = tile->values + static_cast<size_t>(row - tile->row_begin) * tile->ld;
    if (tile->row_end - row >= 2) {
      bf16_tile<2>(linear, panel, row, out, tile->ld);
      row += 2;
    } else {
      bf16_tile<1>(linear, panel, row, out, tile->ld);
      row += 1;
    }
  }
}

}  // namespace tandem::kernels
