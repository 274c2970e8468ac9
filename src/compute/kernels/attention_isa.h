#pragma once
// Attention of consecutive rows of one sequence over one kv head of paged KV (numerics 7): the structs and functions
// that every instruction set implements. C++ callers start at attention.h.
//
// The smallest piece is a chunk: keys 256 c .. 256 c + 255 by absolute position. All query heads of the group and all
// given rows share one pass over its K and V. A (row, head) gets a partial (m, l, o) of the chunk; partials are merged
// strictly left to right, whoever computed them. Any grouping of rows gives the same bits.
//
// Masked keys are exact no-ops: K and V that no given row may see are never used, whatever bytes stand there (stale
// NaN).

#include <stdint.h>

#include "compute/kernels/kv_isa.h"

namespace tandem::kernels {

enum : uint32_t { TK_CHUNK_KEYS = 256, TK_CHUNK_TILES = TK_CHUNK_KEYS / TK_TILE_TOKENS };

// Nothing is owned; block ids before the first visible key and after the last row's are not read.
struct tk_attention {
  uint32_t kind;             // tk_kv_kind
  uint32_t head_dim;         // tk_kv_is_supported(kind, head_dim)
  uint32_t group;            // query heads per kv head
  uint32_t tiles_per_block;  // block size / 16
  uint32_t first_position;   // of row 0; row r stands at first_position + r
  uint32_t window;           // sliding window: a row sees this many keys, its own included; 0 = all
  const uint32_t* blocks;    // the sequence's block ids; blocks[i] holds positions i * block size ...
  const uint8_t* kv;         // this layer and kv head in block 0
  uint64_t block_stride;     // bytes from block id b to b + 1
  const uint8_t* queries;    // prepared query of row 0, first head of the group
  uint64_t row_stride;       // bytes between rows in queries
  uint64_t head_stride;      // bytes between heads of the group in queries
};

// A partial: floats m, l, then o[head_dim] from TK_PARTIAL_O on. m = -inf: no key of the chunk is visible (l = 0, o =
// 0). A score that is NaN or +inf makes l NaN, so that it reaches `finish` through any merge.
enum : uint32_t { TK_PARTIAL_M = 0, TK_PARTIAL_L = 1, TK_PARTIAL_O = 16 };

static inline uint32_t tk_partial_floats(uint32_t head_dim) { return TK_PARTIAL_O + head_dim; }

// What to fetch into L2 beside a chunk whose KV is not in cache yet: its own V while its scores are computed, and
// tile keys[t], one that is needed soon (null: none), while the values of the chunk's tile t are summed. Tiles lie far
// from each other, so that the machine's own prefetchers begin anew with each.
struct tk_keys_ahead {
  const uint8_t* keys[TK_CHUNK_TILES];
};

// Partials of rows row_begin .. row_end - 1, [row][head][tk_partial_floats], for this chunk. `ahead` is null where the
// chunk's KV is in cache.
typedef void tk_attention_chunk_fn(const tk_attention* attention, uint32_t chunk, uint32_t row_begin, uint32_t row_end,
                                   const tk_keys_ahead* ahead, float* partials);

// into = merge(into, next) for `count` partials side by side; `next` is the chunk right of all that `into` holds.
typedef void tk_attention_merge_fn(uint32_t head_dim, uint32_t count, float* into, const float* next);

// out[head_dim] = o * fl(1 / l). False if anything in it is not finite: K, V or the query was not, and the request has
// failed. (A V that is not finite also marks rows before it that were computed in the same call.)
typedef bool tk_attention_finish_fn(uint32_t head_dim, const float* partial, float* out);

tk_attention_chunk_fn tk_attention_chunk_ref, tk_attention_chunk_avx2, tk_attention_chunk_avx512,
    tk_attention_chunk_avx512bf16, tk_attention_chunk_avx512_simde, tk_attention_chunk_avx512bf16_simde;
tk_attention_merge_fn tk_attention_merge_ref, tk_attention_merge_avx2;
tk_attention_finish_fn tk_attention_finish_ref, tk_attention_finish_avx2;

// Positions [begin, end) within a chunk that a row may see; begin == end: none.
struct tk_key_range {
  uint32_t begin;
  uint32_t end;
};

static inline tk_key_range tk_visible_keys(const tk_attention* a, uint32_t chunk, uint32_t row) {
  const uint32_t chunk_begin = chunk * TK_CHUNK_KEYS;
  const uint32_t row_end = a->first_position + row + 1;
  const uint32_t row_begin = a->window != 0 && row_end > a->window ? row_end - a->window : 0;
  const uint32_t end = row_end < chunk_begin ? 0 : row_end - chunk_begin;
  const uint32_t begin = row_begin < chunk_begin ? 0 : row_begin - chunk_begin;
  tk_key_range range = {begin, end < TK_CHUNK_KEYS ? end : TK_CHUNK_KEYS};
  if (range.begin >= range.end) range.begin = range.end = 0;
  return range;
}

static inline void tk_set_empty_partial(uint32_t head_dim, float* partial) {
  for (uint32_t i = 0; i < tk_partial_floats(head_dim); ++i) partial[i] = 0.0f;
  partial[TK_PARTIAL_M] = -__builtin_inff();
}

// How many of the (row, head) left the vector kernels take next: six, and the last two batches of like size, because
// 8 as 6 + 2 would leave the second one short of work.
static inline uint32_t tk_batch_units(uint32_t num_left) {
  if (num_left >= 12) return 6;
  return num_left > 6 ? (num_left + 1) / 2 : num_left;
}

static inline const uint8_t* tk_kv_tile(const tk_attention* a, uint32_t chunk, uint32_t tile) {
  const uint32_t index = chunk * TK_CHUNK_TILES + tile;
  return a->kv + a->blocks[index / a->tiles_per_block] * a->block_stride +
         uint64_t(index % a->tiles_per_block) * tk_kv_tile_bytes(a->kind, a->head_dim);
}

// The line of a tile that holds this byte, into L2.
static inline __attribute__((always_inline)) void tk_fetch_line(const uint8_t* tile, uint64_t offset) {
  __builtin_prefetch(tile + offset, 0, 2);
}

// One of eight parts of a tile's K, dims first_dim .. first_dim + num_dims - 1; nothing for null.
static inline __attribute__((always_inline)) void tk_fetch_keys(uint32_t kind, uint32_t dim, const uint8_t* tile,
                                                                uint32_t first_dim, uint32_t num_dims, uint32_t part) {
  if (tile == nullptr) return;
  const uint32_t dim_bytes = tk_kv_v_offset(kind, 1);
  const uint32_t part_bytes = num_dims * dim_bytes / 8;
  for (uint32_t i = 0; i < part_bytes; i += 64) tk_fetch_line(tile, first_dim * dim_bytes + part * part_bytes + i);
  if (kind != TK_KV_INT8 || part != 0) return;
  for (uint32_t i = 0; i < num_dims; i += 64) tk_fetch_line(tile, tk_kv_k_scales_offset(dim) + first_dim + i);
}

// V of one block of 32 dims, and its scales.
static inline __attribute__((always_inline)) void tk_fetch_int8_values(uint32_t dim, const uint8_t* tile,
                                                                       uint32_t block) {
  const uint32_t block_bytes = TK_SCALE_BLOCK * TK_TILE_TOKENS;
  for (uint32_t i = 0; i < block_bytes; i += 64) {
    tk_fetch_line(tile, tk_kv_v_offset(TK_KV_INT8, dim) + block * block_bytes + i);
  }
  tk_fetch_line(tile, tk_kv_v_scales_offset(dim) + block * 32);
}

static inline const uint8_t* tk_query(const tk_attention* a, uint32_t row, uint32_t head) {
  return a->queries + row * a->row_stride + head * a->head_stride;
}

}  // namespace tandem::kernels
