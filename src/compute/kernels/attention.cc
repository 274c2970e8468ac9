#include "compute/kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace tandem::kernels {
namespace {

// Rows that are computed together: the vector kernels take six (row, head) at a time.
uint32_t rows_per_step(uint32_t group) { return 6 / std::gcd(6u, group); }

// Tiles of the sequence that hold keys which the rows can see.
struct TileRange {
  uint32_t begin;
  uint32_t end;
};

TileRange visible_tiles(const tk_attention& attention, RowRange rows) {
  const uint32_t first_end = attention.first_position + rows.begin + 1;
  const uint32_t first_key = attention.window != 0 && first_end > attention.window ? first_end - attention.window : 0;
  return {first_key / TK_TILE_TOKENS, (attention.first_position + rows.end - 1) / TK_TILE_TOKENS + 1};
}

}  // namespace

const AttentionKernels& attention_kernels(Isa isa) {
  static constexpr AttentionKernels kScalarTable = {tk_attention_chunk_ref, tk_attention_merge_ref,
                                                    tk_attention_finish_ref};
  static constexpr AttentionKernels kAvx2Table = {tk_attention_chunk_avx2, tk_attention_merge_avx2,
                                                  tk_attention_finish_avx2};
  static constexpr AttentionKernels kAvx512Table = {tk_attention_chunk_avx512, tk_attention_merge_avx2,
                                                    tk_attention_finish_avx2};
  static constexpr AttentionKernels kAvx512Bf16Table = {tk_attention_chunk_avx512bf16, tk_attention_merge_avx2,
                                                        tk_attention_finish_avx2};
  switch (isa) {
    case Isa::kScalar: return kScalarTable;
    case Isa::kAvx2: return kAvx2Table;
    case Isa::kAvx512: return kAvx512Table;
    case Isa::kAvx512Bf16: return kAvx512Bf16Table;
  }
  return kScalarTable;
}

ChunkRange visible_chunks(const tk_attention& attention, uint32_t row_begin, uint32_t row_end) {
  if (row_begin >= row_end) return {0, 0};
  const uint32_t first_end = attention.first_position + row_begin + 1;
  const uint32_t first_key = attention.window != 0 && first_end > attention.window ? first_end - attention.window : 0;
  const uint32_t last_key = attention.first_position + row_end - 1;
  return {first_key / TK_CHUNK_KEYS, last_key / TK_CHUNK_KEYS + 1};
}

tk_keys_ahead keys_of_chunk(const tk_attention& attention, uint32_t chunk, RowRange rows) {
  const TileRange tiles = visible_tiles(attention, rows);
  tk_keys_ahead ahead;
  for (uint32_t t = 0; t < TK_CHUNK_TILES; ++t) {
    const uint32_t tile = chunk * TK_CHUNK_TILES + t;
    ahead.keys[t] = tile >= tiles.begin && tile < tiles.end ? tk_kv_tile(&attention, chunk, t) : nullptr;
  }
  return ahead;
}

tk_keys_ahead keys_ahead(const tk_attention& attention, uint32_t chunk, RowRange rows, const AttentionNext& next) {
  const TileRange tiles = visible_tiles(attention, rows);
  const TileRange next_tiles =
      next.attention == nullptr ? TileRange{0, 0} : visible_tiles(*next.attention, next.rows);
  tk_keys_ahead ahead;
  for (uint32_t t = 0; t < TK_CHUNK_TILES; ++t) {
    const uint32_t wanted = (chunk + 1) * TK_CHUNK_TILES + t;
    const uint32_t wanted_next = next_tiles.begin + (wanted - tiles.end);
    ahead.keys[t] = nullptr;
    if (wanted < tiles.end) {
      ahead.keys[t] = tk_kv_tile(&attention, 0, wanted);
    } else if (wanted_next < next_tiles.end) {
      ahead.keys[t] = tk_kv_tile(next.attention, 0, wanted_next);
    }
  }
  return ahead;
}

void reset_partials(uint32_t head_dim, uint32_t count, float* partials) {
  const uint32_t stride = tk_partial_floats(head_dim);
  std::memset(partials, 0, size_t{count} * stride * sizeof(float));
  for (uint32_t i = 0; i < count; ++i) {
    partials[size_t{i} * stride + TK_PARTIAL_M] = -std::numeric_limits<float>::infinity();
  }
}

size_t attention_scratch_floats(uint32_t head_dim, uint32_t group, uint32_t num_rows) {
  const size_t num_partials = size_t{group} * (num_rows + std::min(num_rows, rows_per_step(group)));
  return num_partials * tk_partial_floats(head_dim);
}

uint32_t attention_rows(const AttentionKernels& kernels, const tk_attention& attention, RowRange rows, float* scratch,
                        const AttentionOutput& output, const AttentionNext& next) {
  const uint32_t head_dim = attention.head_dim;
  const uint32_t group = attention.group;
  const size_t row_floats = size_t{group} * tk_partial_floats(head_dim);
  const uint32_t num_rows = rows.end - rows.begin;
  float* step_partials = scratch + num_rows * row_floats;
  reset_partials(head_dim, num_rows * group, scratch);

  const uint32_t step = rows_per_step(group);
  const ChunkRange all = visible_chunks(attention, rows.begin, rows.end);
  for (uint32_t chunk = all.begin; chunk < all.end; ++chunk) {
    const tk_keys_ahead ahead = keys_ahead(attention, chunk, rows, next);
    bool is_in_cache = false;  // once the first rows have read it
    for (uint32_t row = rows.begin; row < rows.end; row += step) {
      const uint32_t row_end = std::min(rows.end, row + step);
      const ChunkRange seen = visible_chunks(attention, row, row_end);
      if (chunk < seen.begin || chunk >= seen.end) continue;
      kernels.chunk(&attention, chunk, row, row_end, is_in_cache ? nullptr : &ahead, step_partials);
      is_in_cache = true;
      kernels.merge(head_dim, (row_end - row) * group, scratch + (row - rows.begin) * row_floats, step_partials);
    }
  }

  uint32_t first_bad_row = rows.end;
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (uint32_t head = 0; head < group; ++head) {
      const float* partial = scratch + row * row_floats + size_t{head} * tk_partial_floats(head_dim);
      const bool is_finite =
          kernels.finish(head_dim, partial, output.out + row * output.row_stride + head * output.head_stride);
      if (!is_finite) first_bad_row = std::min(first_bad_row, rows.begin + row);
    }
  }
  return first_bad_row;
}

}  // namespace tandem::kernels
