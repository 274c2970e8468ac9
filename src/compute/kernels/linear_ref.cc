// The oracle: numerics 1 to 3 as plain loops, in the order in which the contract states them.

#include <cmath>
#include <cstring>

#include "compute/kernels/exp2_isa.h"
#include "compute/kernels/linear_entries_isa.h"
#include "compute/tensor/float16.h"

namespace tandem::kernels {
namespace {

constexpr uint32_t kMaxSegments = 16;

// Partial sums of the segments, joined by a balanced tree over neighbours.
struct SegmentSums {
  float sums[kMaxSegments][TK_PANEL_ROWS];

  void join(uint32_t num_segments, float* out) {
    for (uint32_t n = num_segments; n > 1; n /= 2) {
      for (uint32_t i = 0; i < n / 2; ++i) {
        for (int r = 0; r < TK_PANEL_ROWS; ++r) sums[i][r] = sums[2 * i][r] + sums[2 * i + 1][r];
      }
    }
    memcpy(out, sums[0], sizeof sums[0]);
  }
};

// Calls sum_segment(row, segment, sums) for every segment of every row of the tile.
template <typename SumSegment>
void for_each_row(const tk_linear& linear, const tk_tile& tile, SumSegment sum_segment) {
  for (uint32_t r = tile.row_begin; r < tile.row_end; ++r) {
    SegmentSums segments{};
    const uint8_t* row = linear.x + r * linear.x_stride;
    for (uint32_t s = 0; s < linear.segments; ++s) sum_segment(row, s, segments.sums[s]);
    segments.join(linear.segments, tile.values + static_cast<size_t>(r - tile.row_begin) * tile.ld);
  }
}

}  // namespace

void tk_panel_f32_ref(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const auto* panel = reinterpret_cast<const float*>(linear->panels + panel_index * linear->panel_bytes);
  const uint32_t length = linear->k / linear->segments;
  for_each_row(*linear, *tile, [&](const uint8_t* row, uint32_t segment, float* sums) {
    const auto* x = reinterpret_cast<const float*>(row);
    for (uint32_t k = segment * length; k < (segment + 1) * length; ++k) {
      const float* weights = panel + static_cast<size_t>(k) * TK_PANEL_ROWS;
      for (int r = 0; r < TK_PANEL_ROWS; ++r) sums[r] = std::fma(x[k], weights[r], sums[r]);
    }
  });
}

void tk_panel_bf16_ref(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const auto* panel = reinterpret_cast<const uint16_t*>(linear->panels + panel_index * linear->panel_bytes);
  const uint32_t length = (linear->k + 1) / 2 / linear->segments;
  for_each_row(*linear, *tile, [&](const uint8_t* row, uint32_t segment, float* sums) {
    const auto* x = reinterpret_cast<const uint16_t*>(row);
    for (uint32_t pair = segment * length; pair < (segment + 1) * length; ++pair) {
      const float even = tensor::f32_from_bf16(x[2 * pair]);
      const float odd = tensor::f32_from_bf16(x[2 * pair + 1]);
      const uint16_t* weights = panel + static_cast<size_t>(pair) * 2 * TK_PANEL_ROWS;
      for (int r = 0; r < TK_PANEL_ROWS; ++r) {
        sums[r] = std::fma(odd, tensor::f32_from_bf16(weights[2 * r + 1]), sums[r]);
        sums[r] = std::fma(even, tensor::f32_from_bf16(weights[2 * r]), sums[r]);
      }
    }
  });
}

namespace {

float field_at(const tk_panel_format& format, const uint8_t* fields, uint32_t index) {
  if (format.scale_f32) return reinterpret_cast<const float*>(fields)[index];
  return tensor::f32_from_f16(reinterpret_cast<const uint16_t*>(fields)[index]);
}

// dots[r] = sum of level * q over `num_groups` groups of four k, from group `first` of the block.
void sum_levels(const tk_panel_format& format, const uint8_t* block, const int8_t* q, uint32_t first,
                uint32_t num_groups, int32_t* dots) {
  for (int r = 0; r < TK_PANEL_ROWS; ++r) dots[r] = 0;
  for (uint32_t group = first; group < first + num_groups; ++group) {
    const int8_t* x = q + 4 * group;
    const bool is_w8 = format.kind == TK_PANEL_W8;
    const uint8_t* levels = block + 128 * (is_w8 ? group : group / 2);
    const int shift = !is_w8 && group % 2 != 0 ? 4 : 0;
    const int mask = is_w8 ? 255 : 15;
    for (int r = 0; r < TK_PANEL_ROWS; ++r) {
      for (int i = 0; i < 4; ++i) dots[r] += ((levels[4 * r + i] >> shift) & mask) * x[i];
    }
  }
}

}  // namespace

void tk_panel_int8_ref(const tk_linear* linear, uint32_t panel_index, const tk_tile* tile) {
  const tk_panel_format& format = linear->format;
  const uint8_t* panel = linear->panels + panel_index * linear->panel_bytes;
  const uint32_t length = linear->k / 32 / linear->segments;
  const uint32_t block_bytes = tk_block_bytes(&format);
  const uint32_t num_halves = format.num_scales;  // pieces of a block that have a scale of their own
  const uint32_t num_groups = 8 / num_halves;
  for_each_row(*linear, *tile, [&](const uint8_t* row, uint32_t segment, float* sums) {
    const float* scales = tk_q8_scales_of(row, linear->k);
    const int16_t* q_sums = tk_q8_sums_of(row, linear->k);
    for (uint32_t b = segment * length; b < (segment + 1) * length; ++b) {
      const uint8_t* block = panel + static_cast<size_t>(b) * block_bytes;
      const uint8_t* fields = block + tk_scales_offset(&format);
      for (uint32_t half = 0; half < num_halves; ++half) {
        int32_t dots[TK_PANEL_ROWS];
        sum_levels(format, block, reinterpret_cast<const int8_t*>(row) + 32 * b, half * num_groups, num_groups, dots);
        const int32_t q_sum = num_halves == 2 ? q_sums[2 * b + half] : q_sums[2 * b] + q_sums[2 * b + 1];
        const float scaled_sum = scales[b] * static_cast<float>(q_sum);
        for (uint32_t r = 0; r < TK_PANEL_ROWS; ++r) {
          const float dot = static_cast<float>(dots[r] - format.zero_point * q_sum);
          sums[r] = std::fma(dot, field_at(format, fields, 32 * half + r) * scales[b], sums[r]);
          if (!format.has_min) continue;
          const float minimum = field_at(format, fields + tk_scales_bytes(&format), 32 * half + r);
          sums[r] = std::fma(minimum, scaled_sum, sums[r]);
        }
      }
    }
  });
}

namespace {

// 32 floats to one block of a Q8 row. A scale that would be zero or denormal makes the whole block zero. Non-finite
// values make the scale non-finite, so that they reach the result.
void quantize_block(const float* x, uint8_t* row, uint32_t k, uint32_t block) {
  uint32_t largest_bits = 0;
  for (int i = 0; i < 32; ++i) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    bits &= 0x7FFFFFFFu;
    if (bits > largest_bits) largest_bits = bits;
  }
  float largest;
  memcpy(&largest, &largest_bits, 4);
  const float scale = largest / 127.0f;
  const float inverse = scale > 0.0f ? 127.0f / largest : 0.0f;
  tk_q8_scales(row, k)[block] = scale;
  int16_t sums[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    float value = x[i] * inverse;
    value = value < 127.0f ? value : 127.0f;
    value = value > -127.0f ? value : -127.0f;
    const auto q = static_cast<int8_t>(tk_rint(value));
    row[32 * block + static_cast<uint32_t>(i)] = static_cast<uint8_t>(q);
    sums[i / 16] = static_cast<int16_t>(sums[i / 16] + q);
  }
  memcpy(tk_q8_sums(row, k) + 2 * block, sums, sizeof sums);
}

// Stores columns column .. column + num_columns - 1 of a row.
void store_columns(const float* values, uint8_t* row, uint8_t kind, uint32_t columns, uint32_t column,
                   uint32_t num_columns) {
  if (kind == TK_ROWS_F32) {
    memcpy(row + 4ull * column, values, 4ull * num_columns);
  } else if (kind == TK_ROWS_Q8) {
    quantize_block(values, row, columns, column / 32);
  } else {
    auto* out = reinterpret_cast<uint16_t*>(row) + column;
    for (uint32_t i = 0; i < num_columns; ++i) out[i] = tensor::bf16_from_f32(values[i]);
    if (num_columns % 2 != 0 && column + num_columns == columns) out[num_columns] = 0;
  }
}

const float* row_of(const float* rows, uint32_t r, uint64_t stride) {
  return reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(rows) + r * stride);
}

}  // namespace

void tk_linear_epilogue_ref(const tk_epilogue* e, const tk_tile* tile, const tk_tile* up, uint32_t column,
                            uint32_t num_columns) {
  for (uint32_t r = tile->row_begin; r < tile->row_end; ++r) {
    const float* sums = tile->values + static_cast<size_t>(r - tile->row_begin) * tile->ld;
    const float* ups = up == nullptr ? nullptr : up->values + static_cast<size_t>(r - up->row_begin) * up->ld;
    const float* residual = e->residual == nullptr ? nullptr : row_of(e->residual, r, e->residual_stride);
    float values[TK_PANEL_ROWS];
    for (uint32_t i = 0; i < num_columns; ++i) {
      float value = sums[i];
      if (e->bias != nullptr) value = value + e->bias[column + i];
      if (e->activation == TK_ACTIVATION_SILU_GATE) {
        const float other = e->up_bias != nullptr ? ups[i] + e->up_bias[column + i] : ups[i];
        value = tk_silu(value) * other;
      }
      if (residual != nullptr) value = value + residual[column + i];
      values[i] = value;
    }
    uint8_t* out = static_cast<uint8_t*>(e->out) + r * e->out_stride;
    store_columns(values, out, e->out_kind, e->out_columns, column, num_columns);
  }
}

void tk_quantize_ref(const tk_quantize* a, uint32_t row_begin, uint32_t row_end) {
  for (uint32_t r = row_begin; r < row_end; ++r) {
    const float* x = row_of(a->x, r, a->x_stride);
    uint8_t* out = static_cast<uint8_t*>(a->out) + r * a->out_stride;
    for (uint32_t column = 0; column < a->k; column += 32) {
      const uint32_t num_columns = a->k - column < 32 ? a->k - column : 32;
      store_columns(x + column, out, a->out_kind, a->k, column, num_columns);
    }
  }
}

}  // namespace tandem::kernels
