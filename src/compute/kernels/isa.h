#pragma once
// Isa: the instruction sets that kernels exist for, and which of them this machine runs. All give the same bits.

#include <string_view>

namespace tandem::kernels {

enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Bf16 };  // kAvx512: F BW VL DQ VNNI

Isa best_isa();            // of this machine, by cpuid, once
bool is_supported(Isa isa);
std::string_view isa_name(Isa isa);  // scalar avx2 avx512 avx512bf16

}  // namespace tandem::kernels
