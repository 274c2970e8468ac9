// The epilogue of linear kernels and the quantisation of activation rows (numerics 1 and 2) on AVX-512 for whole
// panels, 32 columns at a time, to f32 or Q8. What is narrower, or bf16, goes to the AVX2 form: the bits are the same.

#include "compute/kernels/exp2_avx512_isa.h"
#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/simd_isa.h"

namespace tandem::kernels {
namespace {

struct Columns {
  __m512 low, high;
};

TANDEM_INLINE Columns load_columns(const float* p) { return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)}; }

TANDEM_INLINE Columns add_columns(const Columns& a, const Columns& b) {
  return {_mm512_add_ps(a.low, b.low), _mm512_add_ps(a.high, b.high)};
}

TANDEM_INLINE int32_t sum_lanes(__m512i v) {
  const __m256i by8 = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti32x8_epi32(v, 1));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

// The largest magnitude as bits: integers order as magnitudes do, and a NaN is above all.
TANDEM_INLINE float largest_magnitude(const Columns& values) {
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i both = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(values.low), mask),
                                        _mm512_and_si512(_mm512_castps_si512(values.high), mask));
  const __m256i by8 = _mm256_max_epi32(_mm512_castsi512_si256(both), _mm512_extracti32x8_epi32(both, 1));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

TANDEM_INLINE __m512i quantised(__m512 values, __m512 inverse) {
  __m512 v = _mm512_mul_ps(values, inverse);
  v = _mm512_max_ps(_mm512_min_ps(v, _mm512_set1_ps(127.0f)), _mm512_set1_ps(-127.0f));
  return _mm512_cvtps_epi32(v);
}

// 32 floats to one block of a Q8 row of k columns, as tk_quantize_ref does it.
TANDEM_INLINE void store_q8(const Columns& values, uint8_t* row, uint32_t k, uint32_t block) {
  const float largest = largest_magnitude(values);
  const float scale = largest / 127.0f;
  const __m512 inverse = _mm512_set1_ps(scale > 0.0f ? 127.0f / largest : 0.0f);
  const __m512i low = quantised(values.low, inverse);
  const __m512i high = quantised(values.high, inverse);
  tk_q8_scales(row, k)[block] = scale;
  int16_t* sums = tk_q8_sums(row, k) + 2 * block;
  sums[0] = static_cast<int16_t>(sum_lanes(low));
  sums[1] = static_cast<int16_t>(sum_lanes(high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 32 * block), _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 32 * block + 16), _mm512_cvtepi32_epi8(high));
}

TANDEM_INLINE const float* row_of(const float* rows, uint32_t r, uint64_t stride) {
  return reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(rows) + r * stride);
}

}  // namespace

void TANDEM_ISA_SYMBOL(tk_linear_epilogue_avx512)(const tk_epilogue* e, const tk_tile* tile, const tk_tile* up,
                                                  uint32_t column, uint32_t num_columns) {
  if (num_columns != TK_PANEL_ROWS || e->out_kind == TK_ROWS_BF16) {
    return tk_linear_epilogue_avx2(e, tile, up, column, num_columns);
  }
  for (uint32_t r = tile->row_begin; r < tile->row_end; ++r) {
    Columns values = load_columns(tile->values + static_cast<size_t>(r - tile->row_begin) * tile->ld);
    if (e->bias != nullptr) values = add_columns(values, load_columns(e->bias + column));
    if (e->activation == TK_ACTIVATION_SILU_GATE) {
      Columns other = load_columns(up->values + static_cast<size_t>(r - up->row_begin) * up->ld);
      if (e->up_bias != nullptr) other = add_columns(other, load_columns(e->up_bias + column));
      values.low = _mm512_mul_ps(tk_silu_avx512(values.low), other.low);
      values.high = _mm512_mul_ps(tk_silu_avx512(values.high), other.high);
    }
    if (e->residual != nullptr) {
      values = add_columns(values, load_columns(row_of(e->residual, r, e->residual_stride) + column));
    }
    uint8_t* out = static_cast<uint8_t*>(e->out) + r * e->out_stride;
    if (e->out_kind == TK_ROWS_Q8) {
      store_q8(values, out, e->out_columns, column / 32);
    } else {
      _mm512_storeu_ps(out + 4ull * column, values.low);
      _mm512_storeu_ps(out + 4ull * column + 64, values.high);
    }
  }
}

void TANDEM_ISA_SYMBOL(tk_quantize_avx512)(const tk_quantize* a, uint32_t row_begin, uint32_t row_end) {
  if (a->out_kind != TK_ROWS_Q8) return tk_quantize_avx2(a, row_begin, row_end);
  for (uint32_t r = row_begin; r < row_end; ++r) {
    const float* x = row_of(a->x, r, a->x_stride);
    uint8_t* out = static_cast<uint8_t*>(a->out) + r * a->out_stride;
    for (uint32_t block = 0; block < a->k / 32; ++block) store_q8(load_columns(x + 32 * block), out, a->k, block);
  }
}

}  // namespace tandem::kernels
