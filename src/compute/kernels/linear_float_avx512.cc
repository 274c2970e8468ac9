#include "compute/kernels/linear_float_avx512_isa.h"

namespace tandem::kernels {
namespace {

struct F32Step {
  static uint32_t num_steps(uint32_t k) { return k; }
  TANDEM_INLINE __m512 add(__m512 sum, __m512i x, __m512i weights) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(weights), sum);
  }
};

// A pair of bf16: the odd element masked out in place, then the even one shifted up.
struct Bf16Step {
  static uint32_t num_steps(uint32_t k) { return (k + 1) / 2; }
  TANDEM_INLINE __m512 add(__m512 sum, __m512i x, __m512i weights) {
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, odd)),
                          _mm512_castsi512_ps(_mm512_and_si512(weights, odd)), sum);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(weights, 16)), sum);
  }
};

}  // namespace

void TANDEM_ISA_SYMBOL(tk_panel_f32_avx512)(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  float_panel<F32Step>(linear, panel_index, tile);
}

void TANDEM_ISA_SYMBOL(tk_panel_bf16_avx512)(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  float_panel<Bf16Step>(linear, panel_index, tile);
}

}  // namespace tandem::kernels
