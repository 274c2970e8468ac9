#include "compute/kernels/linear.h"

#include "base/check.h"
#include "compute/kernels/linear_entries_isa.h"

namespace tandem::kernels {

const LinearKernels& linear_kernels(Isa isa) {
  static constexpr LinearKernels kScalarTable = {
      {tk_panel_f32_ref, tk_panel_bf16_ref, tk_panel_int8_ref, tk_panel_int8_ref},
      tk_linear_epilogue_ref,
      tk_quantize_ref};
  TANDEM_CHECK(is_supported(isa));
#if defined(__x86_64__)
  static constexpr LinearKernels kAvx2Table = {
      {tk_panel_f32_avx2, tk_panel_bf16_avx2, tk_panel_int8_avx2, tk_panel_int8_avx2},
      tk_linear_epilogue_avx2,
      tk_quantize_avx2};
  static constexpr LinearKernels kAvx512Table = {
      {tk_panel_f32_avx512, tk_panel_bf16_avx512, tk_panel_int8_avx512, tk_panel_int8_avx512},
      tk_linear_epilogue_avx512,
      tk_quantize_avx512};
  static constexpr LinearKernels kAvx512Bf16Table = {
      {tk_panel_f32_avx512, tk_panel_bf16_avx512bf16, tk_panel_int8_avx512, tk_panel_int8_avx512},
      tk_linear_epilogue_avx512,
      tk_quantize_avx512};
  switch (isa) {
    case Isa::kScalar:
      return kScalarTable;
    case Isa::kAvx2:
      return kAvx2Table;
    case Isa::kAvx512:
      return kAvx512Table;
    case Isa::kAvx512Bf16:
      return kAvx512Bf16Table;
  }
#endif
  return kScalarTable;
}

}  // namespace tandem::kernels
