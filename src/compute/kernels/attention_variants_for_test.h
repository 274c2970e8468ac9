#pragma once
// The attention kernels that this machine can run: those of its instruction sets, and the AVX-512 ones on AVX2 (SIMDe).

#include <vector>

#include "compute/kernels/attention.h"

namespace tandem::kernels {

struct AttentionVariant {
  const char* name;
  AttentionKernels kernels;
};

inline std::vector<AttentionVariant> attention_variants() {
  std::vector<AttentionVariant> variants;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (is_supported(isa)) variants.push_back({isa_name(isa).data(), attention_kernels(isa)});
  }
#ifdef TANDEM_HAS_SIMDE
  variants.push_back({"avx512 by simde", attention_kernels(Isa::kAvx2)});
  variants.back().kernels.chunk = tk_attention_chunk_avx512_simde;
  variants.push_back({"avx512bf16 by simde", variants.back().kernels});
  variants.back().kernels.chunk = tk_attention_chunk_avx512bf16_simde;
#endif
  return variants;
}

}  // namespace tandem::kernels
