#pragma once
// What linear kernels share: the layout of packed weights (panels) and of activation rows, and the table of kernels
// that each instruction set fills in. C structs and static functions only, so that files built for one set may include
// it. The sums, their order and rounding: docs/numerics.md 1 to 3. All kernels want DenormalsOff on their thread.
//
// A panel is 32 output rows of a weight side by side: one vector holds the same k of 8 or 16 outputs. The panels
// of a weight are contiguous and 64-byte aligned; the last one is filled up with zero rows.
//   TK_PANEL_F32   [k][32] f32
//   TK_PANEL_BF16  [ceil(k / 2)][32][2] bf16, an odd k padded with zero
//   TK_PANEL_W8    per 32 of k: levels [8][32][4] u8 (group i holds k 4i .. 4i+3), then scales, then minima
//   TK_PANEL_W4    the same with levels [4][32][4] u8: low nibbles are group 2j, high nibbles group 2j+1
// Scales are [num_scales][32], f16 or f32, minima likewise. The weight is scale * (level - zero_point) + minimum.

#include <stddef.h>
#include <stdint.h>

namespace tandem::kernels {

#define TK_PANEL_ROWS 32

enum { TK_PANEL_F32 = 0, TK_PANEL_BF16 = 1, TK_PANEL_W8 = 2, TK_PANEL_W4 = 3 };
#define TK_NUM_PANEL_KINDS 4

// Activation rows.
//   TK_ROWS_F32   [k] f32
//   TK_ROWS_BF16  [k] bf16, an odd k padded with zero
//   TK_ROWS_Q8    int8 q[k], f32 scale[k / 32], int16 sum[k / 16] (sums of 16 q); k is a multiple of 32
enum { TK_ROWS_F32 = 0, TK_ROWS_BF16 = 1, TK_ROWS_Q8 = 2 };

struct tk_panel_format {
  uint8_t kind;        // TK_PANEL_*; the rest matters for W8 and W4 only
  uint8_t zero_point;  // 128, 8 or 0
  uint8_t num_scales;  // per 32 of k: 1, or 2 (one for each 16)
  uint8_t scale_f32;   // scales and minima are f32, else f16
  uint8_t has_min;
  uint8_t level_min;  // all levels lie in [level_min, level_max]
  uint8_t level_max;
};

// What one linear multiplies: x (rows of the kind that the format asks for: F32, BF16, Q8) by the panels.
struct tk_linear {
  const uint8_t* panels;
  uint64_t panel_bytes;
  const uint8_t* x;
  uint64_t x_stride;  // bytes
  uint32_t k;
  uint32_t segments;  // a power of two <= 16; divides k (F32), k / 2 (BF16), k / 32 (W8, W4). 1: the k sum is not cut
  tk_panel_format format;
};

// Rows row_begin .. row_end - 1 of x, 32 outputs for each: row r at values + (r - row_begin) * ld.
struct tk_tile {
  float* values;
  uint32_t ld;  // floats, >= 32
  uint32_t row_begin;
  uint32_t row_end;
  // Weights that this thread reads next: kernels may fetch them from memory beside the arithmetic. Null: not known.
  const uint8_t* ahead = nullptr;
  uint32_t ahead_bytes = 0;
};

enum { TK_ACTIVATION_NONE = 0, TK_ACTIVATION_SILU_GATE = 1 };

// What happens to a linear's sums, in this order, one rounding each: + bias, silu(gate) * up, + residual, store.
struct tk_epilogue {
  const float* bias;         // [columns of the output] or null; with a gate: the gate's
  const float* up_bias;      // with a gate, or null
  const float* residual;     // or null; may be the output itself (f32)
  uint64_t residual_stride;  // bytes
  void* out;                 // row r of a tile goes to row r here
  uint64_t out_stride;       // bytes
  uint32_t out_columns;      // of an output row; a multiple of 32 when it is Q8
  uint8_t out_kind;          // TK_ROWS_*
  uint8_t activation;        // TK_ACTIVATION_*
};

// f32 rows to another kind of row (numerics 1).
struct tk_quantize {
  const float* x;
  uint64_t x_stride;  // bytes
  void* out;
  uint64_t out_stride;  // bytes
  uint32_t k;
  uint8_t out_kind;  // TK_ROWS_*
};

// The kernels of one instruction set.
struct tk_linear_kernels {
  // The 32 sums of one panel for each row of the tile, all segments joined. Indexed by the format's kind.
  // A row's bits do not depend on the tile it is in.
  void (*panel[TK_NUM_PANEL_KINDS])(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile);
  // Columns column .. column + num_columns - 1 (<= 32; column is a multiple of 32) of the output rows that `tile` has
  // sums for. `up` is the second tile of a gated linear, else null.
  void (*epilogue)(const tk_epilogue* epilogue, const tk_tile* tile, const tk_tile* up, uint32_t column,
                   uint32_t num_columns);
  // Rows row_begin .. row_end - 1.
  void (*quantize)(const tk_quantize* quantize, uint32_t row_begin, uint32_t row_end);
};

// Bytes of an activation row; Q8 rows are a multiple of 64.
static inline uint64_t tk_activation_row_bytes(uint8_t kind, uint32_t k) {
  if (kind == TK_ROWS_F32) return 4ull * k;
  if (kind == TK_ROWS_BF16) return (2ull * k + 3) / 4 * 4;
  return (k + k / 4ull + 63) / 64 * 64;
}

// Where the parts of a Q8 row begin.
static inline float* tk_q8_scales(void* row, uint32_t k) { return (float*)((uint8_t*)row + k); }
static inline int16_t* tk_q8_sums(void* row, uint32_t k) { return (int16_t*)((uint8_t*)row + k + k / 8); }
static inline const float* tk_q8_scales_of(const void* row, uint32_t k) {
  return (const float*)((const uint8_t*)row + k);
}
static inline const int16_t* tk_q8_sums_of(const void* row, uint32_t k) {
  return (const int16_t*)((const uint8_t*)row + k + k / 8);
}

// The kind of activation rows that a panel kind is multiplied by.
static inline uint8_t tk_rows_kind(uint8_t panel_kind) {
  return panel_kind == TK_PANEL_F32 ? TK_ROWS_F32 : panel_kind == TK_PANEL_BF16 ? TK_ROWS_BF16 : TK_ROWS_Q8;
}

// Bytes of 32 of k in a W8 or W4 panel, and where its scales and minima begin.
static inline uint32_t tk_scales_offset(const tk_panel_format* f) { return f->kind == TK_PANEL_W8 ? 1024 : 512; }
static inline uint32_t tk_scales_bytes(const tk_panel_format* f) {
  return 32u * f->num_scales * (f->scale_f32 ? 4 : 2);
}
static inline uint32_t tk_block_bytes(const tk_panel_format* f) {
  return tk_scales_offset(f) + tk_scales_bytes(f) * (f->has_min ? 2 : 1);
}

static inline uint64_t tk_panel_bytes(const tk_panel_format* f, uint32_t k) {
  if (f->kind == TK_PANEL_F32) return 128ull * k;
  if (f->kind == TK_PANEL_BF16) return 128ull * ((k + 1) / 2);
  return (uint64_t)(k / 32) * tk_block_bytes(f);
}

}  // namespace tandem::kernels
