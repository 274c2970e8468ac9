// The epilogue of linear kernels and the quantisation of activation rows (numerics 1 and 2) on AVX2, 32 columns at a
// time: that is one panel's outputs, and one Q8 block.

#include "compute/kernels/exp2_avx2_isa.h"
#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {
namespace {

struct Columns {
  __m256 v[4];
};

// `count` floats from p, zeros after them; nothing past them is read.
TANDEM_INLINE Columns load_columns(const float* p, uint32_t count) {
  Columns out;
  if (count == TK_PANEL_ROWS) {
    for (int g = 0; g < 4; ++g) out.v[g] = _mm256_loadu_ps(p + 8 * g);
    return out;
  }
  float padded[TK_PANEL_ROWS] = {};
  memcpy(padded, p, 4 * count);
  for (int g = 0; g < 4; ++g) out.v[g] = _mm256_loadu_ps(padded + 8 * g);
  return out;
}

TANDEM_INLINE Columns add_columns(const Columns& a, const Columns& b) {
  Columns out;
  for (int g = 0; g < 4; ++g) out.v[g] = _mm256_add_ps(a.v[g], b.v[g]);
  return out;
}

// Eight f32 to bf16 in the low halves of 32 bits: to nearest even in integers, a NaN stays a (quiet) NaN.
TANDEM_INLINE __m256i round_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i is_odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), is_nan);
}

// Sixteen 16-bit values in order, from the low halves of two vectors.
TANDEM_INLINE __m256i narrow16(__m256i first, __m256i second) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xD8);
}

TANDEM_INLINE void store_bf16(const Columns& values, uint16_t* out, uint32_t count) {
  const __m256i low = narrow16(round_bf16(values.v[0]), round_bf16(values.v[1]));
  const __m256i high = narrow16(round_bf16(values.v[2]), round_bf16(values.v[3]));
  uint16_t all[TK_PANEL_ROWS];
  uint16_t* to = count == TK_PANEL_ROWS ? out : all;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16), high);
  if (to == all) memcpy(out, all, 2 * count);
}

TANDEM_INLINE int32_t sum_lanes(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

// The largest magnitude as bits: integers order as magnitudes do, and a NaN is above all.
TANDEM_INLINE float largest_magnitude(const Columns& values) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i largest = _mm256_setzero_si256();
  for (int g = 0; g < 4; ++g) {
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(values.v[g]), mask));
  }
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

// 32 floats to one block of a Q8 row of k columns, as tk_quantize_ref does it.
TANDEM_INLINE void store_q8(const Columns& values, uint8_t* row, uint32_t k, uint32_t block) {
  const float largest = largest_magnitude(values);
  const float scale = largest / 127.0f;
  const __m256 inverse = _mm256_set1_ps(scale > 0.0f ? 127.0f / largest : 0.0f);
  __m256i q[4];
  for (int g = 0; g < 4; ++g) {
    __m256 v = _mm256_mul_ps(values.v[g], inverse);
    v = _mm256_max_ps(_mm256_min_ps(v, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
    q[g] = _mm256_cvtps_epi32(v);
  }
  tk_q8_scales(row, k)[block] = scale;
  int16_t* sums = tk_q8_sums(row, k) + 2 * block;
  sums[0] = static_cast<int16_t>(sum_lanes(_mm256_add_epi32(q[0], q[1])));
  sums[1] = static_cast<int16_t>(sum_lanes(_mm256_add_epi32(q[2], q[3])));
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i in_order = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 32 * block), in_order);
}

// Columns column .. column + count - 1 of an output row.
TANDEM_INLINE void store_columns(const Columns& values, uint8_t* row, uint8_t kind, uint32_t columns, uint32_t column,
                                 uint32_t count) {
  if (kind == TK_ROWS_Q8) {
    store_q8(values, row, columns, column / 32);
  } else if (kind == TK_ROWS_BF16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(row) + column;
    store_bf16(values, out, count);
    if (count % 2 != 0 && column + count == columns) out[count] = 0;
  } else if (count == TK_PANEL_ROWS) {
    float* out = reinterpret_cast<float*>(row) + column;
    for (int g = 0; g < 4; ++g) _mm256_storeu_ps(out + 8 * g, values.v[g]);
  } else {
    float all[TK_PANEL_ROWS];
    for (int g = 0; g < 4; ++g) _mm256_storeu_ps(all + 8 * g, values.v[g]);
    memcpy(row + 4ull * column, all, 4 * count);
  }
}

TANDEM_INLINE const float* row_of(const float* rows, uint32_t r, uint64_t stride) {
  return reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(rows) + r * stride);
}

}  // namespace

void tk_linear_epilogue_avx2(const tk_epilogue* e, const tk_tile* tile, const tk_tile* up, uint32_t column,
                             uint32_t num_columns) {
  for (uint32_t r = tile->row_begin; r < tile->row_end; ++r) {
    Columns values = load_columns(tile->values + static_cast<size_t>(r - tile->row_begin) * tile->ld, TK_PANEL_ROWS);
    if (e->bias != nullptr) values = add_columns(values, load_columns(e->bias + column, num_columns));
    if (e->activation == TK_ACTIVATION_SILU_GATE) {
      Columns other = load_columns(up->values + static_cast<size_t>(r - up->row_begin) * up->ld, TK_PANEL_ROWS);
      if (e->up_bias != nullptr) other = add_columns(other, load_columns(e->up_bias + column, num_columns));
      for (int g = 0; g < 4; ++g) values.v[g] = _mm256_mul_ps(tk_silu_avx2(values.v[g]), other.v[g]);
    }
    if (e->residual != nullptr) {
      values = add_columns(values, load_columns(row_of(e->residual, r, e->residual_stride) + column, num_columns));
    }
    uint8_t* out = static_cast<uint8_t*>(e->out) + r * e->out_stride;
    store_columns(values, out, e->out_kind, e->out_columns, column, num_columns);
  }
}

void tk_quantize_avx2(const tk_quantize* a, uint32_t row_begin, uint32_t row_end) {
  for (uint32_t r = row_begin; r < row_end; ++r) {
    const float* x = row_of(a->x, r, a->x_stride);
    uint8_t* out = static_cast<uint8_t*>(a->out) + r * a->out_stride;
    for (uint32_t column = 0; column < a->k; column += TK_PANEL_ROWS) {
      const uint32_t count = a->k - column < TK_PANEL_ROWS ? a->k - column : TK_PANEL_ROWS;
      store_columns(load_columns(x + column, count), out, a->out_kind, a->k, column, count);
    }
  }
}

}  // namespace tandem::kernels
