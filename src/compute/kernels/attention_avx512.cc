#include "compute/kernels/attention_avx512_isa.h"

namespace tandem::kernels {
namespace {

// A pair of bf16 without the instruction: the odd element masked out in place, then the even one shifted up.
struct ByFma {
  TANDEM_INLINE __m512 add(__m512 acc, __m512i a, __m512i b) {
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m512 odd_a = _mm512_castsi512_ps(_mm512_and_si512(a, odd));
    const __m512 even_a = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    acc = _mm512_fmadd_ps(odd_a, _mm512_castsi512_ps(_mm512_and_si512(b, odd)), acc);
    return _mm512_fmadd_ps(even_a, _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), acc);
  }
  TANDEM_INLINE __m256i round(__m512 x) { return high_halves(rounded_to_bf16(x)); }
};

}  // namespace

void TANDEM_ISA_SYMBOL(tk_attention_chunk_avx512)(const tk_attention* attention, uint32_t chunk, uint32_t row_begin,
                                                  uint32_t row_end, const tk_keys_ahead* ahead, float* partials) {
  attention_chunk<ByFma>(attention, chunk, row_begin, row_end, ahead, partials);
}

}  // namespace tandem::kernels
