// Int8 linear on AVX-512 VNNI (numerics 2): sixteen outputs a vector, u8 levels times s8 activations straight into
// int32. The zero point is taken off once a block, by starting from -zero_point * sum(q).

#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {
namespace {

// Where the rows of a tile stand. The three parts of a row are reached by one pointer and an offset that all rows
// share, so that all addresses of the inner loop stay in registers.
template <int kRows>
struct Rows {
  const uint8_t* x[kRows];
  size_t q;  // of the block at hand: its q, scale and sums
  size_t scale;
  size_t sums;
};

template <int kRows>
struct Sums {
  __m512 v[2][kRows];  // [outputs 16h .. 16h + 15][row]
};

// The levels of group `group` (four k) for outputs 16 * half ...
template <bool kNibbles>
TANDEM_INLINE __m512i levels_at(const uint8_t* block, int group, int half) {
  if (!kNibbles) return _mm512_loadu_si512(block + 128 * group + 64 * half);
  __m512i both = _mm512_loadu_si512(block + 128 * (group / 2) + 64 * half);
  if (group % 2 != 0) both = _mm512_srli_epi16(both, 4);
  return _mm512_and_si512(both, _mm512_set1_epi8(15));
}

// Sixteen scales or minima from `index` on.
TANDEM_INLINE __m512 fields_at(const tk_panel_format* f, const uint8_t* fields, int index) {
  if (f->scale_f32) return _mm512_loadu_ps(reinterpret_cast<const float*>(fields) + index);
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(fields + 2 * index)));
}

// Four bytes of a row, sixteen times.
TANDEM_INLINE __m512i broadcast4(const uint8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}

// Adds piece `kPiece` of `kPieces` of the block at hand: the k that share a scale.
template <bool kNibbles, int kPiece, int kPieces, bool kHasMin, int kRows>
TANDEM_INLINE void add_piece(const tk_panel_format* f, const uint8_t* block, const Rows<kRows>& rows,
                             Sums<kRows>* sums) {
  __m512i dots[2][kRows];
  float q_sums[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    int16_t two[2];
    memcpy(two, rows.x[r] + rows.sums, 4);
    const int32_t sum = kPieces == 1 ? two[0] + two[1] : two[kPiece];
    q_sums[r] = static_cast<float>(sum);
    dots[0][r] = dots[1][r] = _mm512_set1_epi32(-f->zero_point * sum);
  }
#pragma GCC unroll 8
  for (int group = 8 / kPieces * kPiece; group < 8 / kPieces * (kPiece + 1); ++group) {
    const __m512i low = levels_at<kNibbles>(block, group, 0);
    const __m512i high = levels_at<kNibbles>(block, group, 1);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i q = broadcast4(rows.x[r] + rows.q + 4 * group);
      TK_DPBUSD(dots[0][r], low, q);
      TK_DPBUSD(dots[1][r], high, q);
    }
  }
  const uint8_t* fields = block + (kNibbles ? 512 : 1024);
  const __m512 scale[2] = {fields_at(f, fields, 32 * kPiece), fields_at(f, fields, 32 * kPiece + 16)};
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512 row_scale = _mm512_castsi512_ps(broadcast4(rows.x[r] + rows.scale));
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      sums->v[h][r] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[h][r]), _mm512_mul_ps(scale[h], row_scale), sums->v[h][r]);
    }
  }
  if constexpr (!kHasMin) return;
  const uint8_t* minima = fields + tk_scales_bytes(f);
  const __m512 minimum[2] = {fields_at(f, minima, 32 * kPiece), fields_at(f, minima, 32 * kPiece + 16)};
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float row_scale;
    memcpy(&row_scale, rows.x[r] + rows.scale, 4);
    const __m512 scaled_sum = _mm512_set1_ps(row_scale * q_sums[r]);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) sums->v[h][r] = _mm512_fmadd_ps(minimum[h], scaled_sum, sums->v[h][r]);
  }
}

constexpr uint32_t kMaxRows = 6;  // of a tile

// What is left to fetch of the weights that come next. Each block of a tile asks for a few cache lines: else memory
// would idle while all rows but the first few are multiplied from the cache.
struct Fetch {
  const uint8_t* next;
  uint32_t num_lines;
  uint32_t lines_per_row;  // what each row of a block asks for, in 1/256 of a line
};

Fetch fetch_of(const tk_linear* a, const tk_tile* tile) {
  const uint32_t num_rows = tile->row_end - tile->row_begin;
  // A panel that all rows pass at once is one stream from memory, which the machine's own prefetchers follow.
  const uint32_t num_lines = num_rows <= kMaxRows ? 0 : (tile->ahead_bytes + 63) / 64;
  const uint32_t work = a->k / 32 * num_rows;
  return {tile->ahead, num_lines, work == 0 ? 0 : (256 * num_lines + work - 1) / work};
}

TANDEM_INLINE void fetch_lines(Fetch* fetch, uint32_t count) {
  if (count > fetch->num_lines) count = fetch->num_lines;
  fetch->num_lines -= count;
  for (; count > 0; --count, fetch->next += 64) __builtin_prefetch(fetch->next, 0, 2);
}

// Keeps g++ from giving each row a pointer for each of its parts, which it then spills.
TANDEM_INLINE void keep_offset(size_t& offset) { asm("" : "+r"(offset)); }

template <bool kNibbles, int kPieces, bool kHasMin, int kRows>
__attribute__((noinline)) void int8_tile(const tk_linear* a, const uint8_t* panel, const uint8_t* x, float* out,
                                         uint32_t ld, Fetch* fetch) {
  const tk_panel_format format = a->format;
  Rows<kRows> rows;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) rows.x[r] = x + static_cast<size_t>(r) * a->x_stride;
  rows.q = 0;
  rows.scale = a->k;
  rows.sums = a->k + a->k / 8;
  const uint32_t block_bytes = tk_block_bytes(&format);
  const uint32_t length = a->k / 32 / a->segments;
  const uint32_t lines_per_block = (fetch->lines_per_row * kRows + 255) / 256;
  Sums<kRows> waiting[4];  // finished subtrees of 1, 2, 4, 8 segments that wait for their right neighbour
  Sums<kRows> sums;
  for (uint32_t s = 0; s < a->segments; ++s) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums.v[0][r] = sums.v[1][r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < length; ++b) {
      add_piece<kNibbles, 0, kPieces, kHasMin, kRows>(&format, panel, rows, &sums);
      if constexpr (kPieces == 2) add_piece<kNibbles, 1, kPieces, kHasMin, kRows>(&format, panel, rows, &sums);
      panel += block_bytes;
      rows.q += 32;
      rows.scale += 4;
      rows.sums += 4;
      keep_offset(rows.q);
      keep_offset(rows.scale);
      keep_offset(rows.sums);
      fetch_lines(fetch, lines_per_block);
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

template <bool kNibbles, int kPieces, bool kHasMin>
void int8_panel(const tk_linear* a, uint32_t panel_index, const tk_tile* tile) {
  const uint8_t* panel = a->panels + panel_index * a->panel_bytes;
  Fetch fetch = fetch_of(a, tile);
  for (uint32_t row = tile->row_begin; row < tile->row_end;) {
    float* out = tile->values + static_cast<size_t>(row - tile->row_begin) * tile->ld;
    const uint8_t* x = a->x + row * a->x_stride;
    const uint32_t left = tile->row_end - row;
    if (left >= kMaxRows) {
      int8_tile<kNibbles, kPieces, kHasMin, kMaxRows>(a, panel, x, out, tile->ld, &fetch);
      row += kMaxRows;
    } else if (left >= 4) {
      int8_tile<kNibbles, kPieces, kHasMin, 4>(a, panel, x, out, tile->ld, &fetch);
      row += 4;
    } else if (left >= 2) {
      int8_tile<kNibbles, kPieces, kHasMin, 2>(a, panel, x, out, tile->ld, &fetch);
      row += 2;
    } else {
      int8_tile<kNibbles, kPieces, kHasMin, 1>(a, panel, x, out, tile->ld, &fetch);
      row += 1;
    }
  }
}

template <bool kNibbles, int kPieces>
void int8_panel(const tk_linear* a, uint32_t panel_index, const tk_tile* tile) {
  a->format.has_min ? int8_panel<kNibbles, kPieces, true>(a, panel_index, tile)
                    : int8_panel<kNibbles, kPieces, false>(a, panel_index, tile);
}

}  // namespace

void TANDEM_ISA_SYMBOL(tk_panel_int8_avx512)(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const bool is_w4 = linear->format.kind == TK_PANEL_W4;
  if (linear->format.num_scales == 2) {
    is_w4 ? int8_panel<true, 2>(linear, panel_index, tile) : int8_panel<false, 2>(linear, panel_index, tile);
  } else {
    is_w4 ? int8_panel<true, 1>(linear, panel_index, tile) : int8_panel<false, 1>(linear, panel_index, tile);
  }
}

}  // namespace tandem::kernels
