#include "compute/kernels/element_kernels.h"

namespace tandem::kernels {

const ElementKernels& element_kernels(Isa isa) {
  static constexpr ElementKernels kScalarTable = {tk_rms_norm_ref, tk_rope_ref, tk_silu_mul_ref, tk_argmax_ref,
                                                  tk_sum_exp_ref};
  static constexpr ElementKernels kAvx2Table = {tk_rms_norm_avx2, tk_rope_avx2, tk_silu_mul_avx2, tk_argmax_avx2,
                                                tk_sum_exp_avx2};
  // Rope and argmax are too short to gain from wider registers.
  static constexpr ElementKernels kAvx512Table = {tk_rms_norm_avx512, tk_rope_avx2, tk_silu_mul_avx512, tk_argmax_avx2,
                                                  tk_sum_exp_avx512};
  switch (isa) {
    case Isa::kScalar: return kScalarTable;
    case Isa::kAvx2: return kAvx2Table;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16: return kAvx512Table;
  }
  return kScalarTable;
}

}  // namespace tandem::kernels
