#pragma once
// The bytes of a KV tile: 16 tokens of one (block, layer, kv head), a K panel, a V panel, then their scales (numerics
// 6). A block of 16 * m tokens holds m tiles, one after the other.
//
//   bf16   K [dim / 2][16 tokens][2]   V [8 token pairs][dim][2]
//   f32    K [dim][16 tokens]          V [16 tokens][dim]
//   int8   K [dim / 4][16 tokens][4]   V [8 token pairs][dim][2]   both signed, -127..127;
//          then K scales [dim / 32][16 tokens], V scales [dim / 32][16 tokens], f16
//
// A prepared query head, which is what attention reads, 4-byte aligned: bf16 [dim]; f32 [dim]; or s8 [dim], then f32
// scales [dim / 32], then int32 sums [dim / 32].

#include <stdint.h>

namespace tandem::kernels {

enum tk_kv_kind : uint32_t { TK_KV_BF16 = 0, TK_KV_F32 = 1, TK_KV_INT8 = 2 };

enum : uint32_t { TK_TILE_TOKENS = 16, TK_SCALE_BLOCK = 32, TK_MAX_HEAD_DIM = 1024 };

// dim even (a multiple of 32 for int8), 2..TK_MAX_HEAD_DIM.
static inline bool tk_kv_is_supported(uint32_t kind, uint32_t dim) {
  if (kind > TK_KV_INT8 || dim == 0 || dim > TK_MAX_HEAD_DIM) return false;
  return dim % (kind == TK_KV_INT8 ? TK_SCALE_BLOCK : 2u) == 0;
}

static inline uint32_t tk_kv_v_offset(uint32_t kind, uint32_t dim) {
  return dim * (kind == TK_KV_BF16 ? 32 : kind == TK_KV_F32 ? 64 : 16);
}

// int8 only.
static inline uint32_t tk_kv_k_scales_offset(uint32_t dim) { return dim * 32; }
static inline uint32_t tk_kv_v_scales_offset(uint32_t dim) { return dim * 33; }

static inline uint32_t tk_kv_tile_bytes(uint32_t kind, uint32_t dim) {
  return dim * (kind == TK_KV_BF16 ? 64 : kind == TK_KV_F32 ? 128 : 34);
}

static inline uint32_t tk_query_bytes(uint32_t kind, uint32_t dim) {
  if (kind == TK_KV_INT8) return dim + 8 * (dim / TK_SCALE_BLOCK);
  return dim * (kind == TK_KV_BF16 ? 2 : 4);
}

}  // namespace tandem::kernels
