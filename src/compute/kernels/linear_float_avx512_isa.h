#pragma once
// F32 and bf16 linear on AVX-512 (numerics 3), shared by the files with and without the bf16 instructions. Each output
// is one chain in rising k; a vector holds sixteen outputs.

#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {
namespace {

template <int kRows>
struct Sums {
  __m512 v[2][kRows];  // [outputs 16h .. 16h + 15][row]
};

// One tile: `Step` says how many bytes of panel and of row one step of the chain takes, and adds one.
template <typename Step, int kRows>
__attribute__((noinline)) void float_tile(const tk_linear* a, const uint8_t* panel, uint32_t row, float* out,
                                          uint32_t ld) {
  const uint8_t* x[kRows];
  for (uint32_t r = 0; r < kRows; ++r) x[r] = a->x + (row + r) * a->x_stride;
  const uint32_t length = Step::num_steps(a->k) / a->segments;
  Sums<kRows> waiting[4];  // finished subtrees of 1, 2, 4, 8 segments that wait for their right neighbour
  Sums<kRows> sums;
  for (uint32_t s = 0; s < a->segments; ++s) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums.v[0][r] = sums.v[1][r] = _mm512_setzero_ps();
    for (uint32_t i = s * length; i < (s + 1) * length; ++i) {
      const __m512i low = _mm512_loadu_si512(panel);
      const __m512i high = _mm512_loadu_si512(panel + 64);
      panel += 128;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int32_t value;
        memcpy(&value, x[r] + static_cast<size_t>(i) * 4, 4);
        const __m512i both = _mm512_set1_epi32(value);
        sums.v[0][r] = Step::add(sums.v[0][r], both, low);
        sums.v[1][r] = Step::add(sums.v[1][r], both, high);
      }
    }
    int level = 0;
    for (uint32_t t = s; t & 1; t >>= 1, ++level) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums.v[0][r] = _mm512_add_ps(waiting[level].v[0][r], sums.v[0][r]);
        sums.v[1][r] = _mm512_add_ps(waiting[level].v[1][r], sums.v[1][r]);
      }
    }
    if (s + 1 < a->segments) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        waiting[level].v[0][r] = sums.v[0][r];
        waiting[level].v[1][r] = sums.v[1][r];
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(out + static_cast<size_t>(r) * ld, sums.v[0][r]);
    _mm512_storeu_ps(out + static_cast<size_t>(r) * ld + 16, sums.v[1][r]);
  }
}

template <typename Step>
TANDEM_INLINE void float_panel(const tk_linear* a, uint32_t panel_index, const tk_tile* tile) {
  const uint8_t* panel = a->panels + panel_index * a->panel_bytes;
  for (uint32_t row = tile->row_begin; row < tile->row_end;) {
    float* out = tile->values + static_cast<size_t>(row - tile->row_begin) * tile->ld;
    const uint32_t left = tile->row_end - row;
    if (left >= 6) {
      float_tile<Step, 6>(a, panel, row, out, tile->ld);
      row += 6;
    } else if (left >= 4) {
      float_tile<Step, 4>(a, panel, row, out, tile->ld);
      row += 4;
    } else if (left >= 2) {
      float_tile<Step, 2>(a, panel, row, out, tile->ld);
      row += 2;
    } else {
      float_tile<Step, 1>(a, panel, row, out, tile->ld);
      row += 1;
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
