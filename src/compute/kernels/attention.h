#pragma once
// Attention over paged KV, for plug-ins: the table of one instruction set, and whole rows on top of it. Contracts:
// attention_isa.h; KV and query layouts: kv_isa.h. All sets give the same bits. Pure, any thread, under DenormalsOff.

#include <cstddef>
#include <cstdint>

#include "compute/kernels/attention_isa.h"
#include "compute/kernels/isa.h"

namespace tandem::kernels {

struct AttentionKernels {
  tk_attention_chunk_fn* chunk;
  tk_attention_merge_fn* merge;
  tk_attention_finish_fn* finish;
};

// The table for `isa`; calling its functions needs a machine with that instruction set.
const AttentionKernels& attention_kernels(Isa isa);

struct ChunkRange {
  uint32_t begin;
  uint32_t end;
};

// Chunks that rows row_begin .. row_end - 1 can see a key of.
ChunkRange visible_chunks(const tk_attention& attention, uint32_t row_begin, uint32_t row_end);

// The empty partial, which merge starts from.
void reset_partials(uint32_t head_dim, uint32_t count, float* partials);

struct RowRange {
  uint32_t begin;
  uint32_t end;
};

// Work that follows on the same thread; its first keys are fetched ahead.
struct AttentionNext {
  const tk_attention* attention;  // null: not known
  RowRange rows;
};

// What to fetch beside `chunk` of these rows: the keys one chunk further on, first of the same rows, then of `next`.
tk_keys_ahead keys_ahead(const tk_attention& attention, uint32_t chunk, RowRange rows, const AttentionNext& next);

// What to fetch beside a chunk where the next work is `chunk` of these rows.
tk_keys_ahead keys_of_chunk(const tk_attention& attention, uint32_t chunk, RowRange rows);

struct AttentionOutput {
  float* out;           // of the first row given, first head of the group
  uint64_t row_stride;  // in floats
  uint64_t head_stride;
};

// Floats that attention_rows needs as scratch for this many rows.
size_t attention_scratch_floats(uint32_t head_dim, uint32_t group, uint32_t num_rows);

// Everything for a range of rows: all their chunks, merged and finished, on this thread. 16 to 64 rows at a
// time keep the chunk's K and V in cache. Returns the first row whose result is not finite, or rows.end.
uint32_t attention_rows(const AttentionKernels& kernels, const tk_attention& attention, RowRange rows, float* scratch,
                        const AttentionOutput& output, const AttentionNext& next = {});

}  // namespace tandem::kernels
