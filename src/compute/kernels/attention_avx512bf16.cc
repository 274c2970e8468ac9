#include "compute/kernels/attention_avx512_isa.h"

namespace tandem::kernels {
namespace {

struct ByDotProduct {
  TANDEM_INLINE __m512 add(__m512 acc, __m512i a, __m512i b) {
    TK_DPBF16(acc, a, b);
    return acc;
  }
  TANDEM_INLINE __m256i round(__m512 x) { return TK_CVT_BF16(x); }
};

}  // namespace

void TANDEM_ISA_SYMBOL(tk_attention_chunk_avx512bf16)(const tk_attention* attention, uint32_t chunk, uint32_t row_begin,
                                                      uint32_t row_end, const tk_keys_ahead* ahead, float* partials) {
  attention_chunk<ByDotProduct>(attention, chunk, row_begin, row_end, ahead, partials);
}

}  // namespace tandem::kernels
