#pragma once
// The functions behind tk_linear_kernels by instruction set; linear.cc puts them in tables.

#include "compute/kernels/linear_isa.h"

namespace tandem::kernels {

typedef void tk_panel_fn(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile);
typedef void tk_epilogue_fn(const tk_epilogue* epilogue, const tk_tile* tile, const tk_tile* up, uint32_t column,
                            uint32_t num_columns);
typedef void tk_quantize_fn(const tk_quantize* quantize, uint32_t row_begin, uint32_t row_end);

tk_panel_fn tk_panel_f32_ref, tk_panel_f32_avx2, tk_panel_f32_avx512;
tk_panel_fn tk_panel_bf16_ref, tk_panel_bf16_avx2, tk_panel_bf16_avx512, tk_panel_bf16_avx512bf16;
tk_panel_fn tk_panel_int8_ref, tk_panel_int8_avx2, tk_panel_int8_avx512;

// As tests build the AVX-512 files for machines without it (simd_isa.h).
tk_panel_fn tk_panel_f32_avx512_simde, tk_panel_bf16_avx512_simde, tk_panel_bf16_avx512bf16_simde;
tk_panel_fn tk_panel_int8_avx512_simde;

tk_epilogue_fn tk_linear_epilogue_ref, tk_linear_epilogue_avx2, tk_linear_epilogue_avx512;
tk_epilogue_fn tk_linear_epilogue_avx512_simde;
tk_quantize_fn tk_quantize_ref, tk_quantize_avx2, tk_quantize_avx512, tk_quantize_avx512_simde;

}  // namespace tandem::kernels
