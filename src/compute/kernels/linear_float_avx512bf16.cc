#include "compute/kernels/linear_float_avx512_isa.h"

namespace tandem::kernels {
namespace {

struct PairStep {
  static uint32_t num_steps(uint32_t k) { return (k + 1) / 2; }
  TANDEM_INLINE __m512 add(__m512 sum, __m512i x, __m512i weights) {
    TK_DPBF16(sum, x, weights);
    return sum;
  }
};

}  // namespace

void TANDEM_ISA_SYMBOL(tk_panel_bf16_avx512bf16)(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  float_panel<PairStep>(linear, panel_index, tile);
}

}  // namespace tandem::kernels
