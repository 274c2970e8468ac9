#include "compute/kernels/pack_weights.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "compute/tensor/dequantize.h"
#include "compute/tensor/float16.h"
#include "compute/tensor/quant_block.h"

namespace tandem::kernels {
namespace {

using tensor::DType;
using tensor::QuantBlock32;

struct LevelRange {
  uint8_t min;
  uint8_t max;
};

LevelRange level_range(DType dtype) {
  switch (dtype) {
    case DType::kQ2_K:
      return {0, 3};
    case DType::kQ3_K:
      return {4, 11};
    case DType::kQ5_0:
      return {112, 143};
    case DType::kQ5_1:
    case DType::kQ5_K:
      return {0, 31};
    case DType::kQ6_K:
      return {96, 159};
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return {1, 241};
    case DType::kQ8_0:
      return {0, 255};
    default:
      return {0, 15};
  }
}

// The panel format of a block-quantised type.
tk_panel_format block_format(DType dtype) {
  const tensor::QuantTraits traits = tensor::quant_traits(dtype);
  const LevelRange range = level_range(dtype);
  tk_panel_format format{};
  format.kind = traits.bits == 4 ? TK_PANEL_W4 : TK_PANEL_W8;
  format.zero_point = traits.zero_point;
  format.num_scales = traits.num_scales;
  format.scale_f32 = !traits.fields_are_f16;
  format.has_min = traits.has_min;
  format.level_min = range.min;
  format.level_max = range.max;
  return format;
}

// Rounds half away from zero into lowest .. highest; NaN becomes lowest.
int round_into(float value, int lowest, int highest) {
  if (!(value > static_cast<float>(lowest))) return lowest;
  if (value >= static_cast<float>(highest)) return highest;
  return static_cast<int>(std::lround(value));
}

// The rule by which Q8_0 files are made.
void quantize_w8(const float* x, QuantBlock32* block) {
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
  const float scale = largest / 127.0f;
  const float stored = tensor::f32_from_f16(tensor::f16_from_f32(scale));
  const float inverse = stored == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < 32; ++i) block->level[i] = static_cast<uint8_t>(128 + round_into(x[i] * inverse, -127, 127));
  block->scale[0] = block->scale[1] = stored;
  block->zero_point = 128;
}

// The rule by which Q4_0 files are made: the largest weight, with its sign, becomes level 0 (-8).
void quantize_w4(const float* x, QuantBlock32* block) {
  float extreme = 0.0f;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float scale = extreme / -8.0f;
  const float stored = tensor::f32_from_f16(tensor::f16_from_f32(scale));
  const float inverse = stored == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < 32; ++i) {
    const float shifted = x[i] * inverse + 8.5f;
    block->level[i] = static_cast<uint8_t>(!(shifted > 0.0f) ? 0 : shifted >= 16.0f ? 15 : static_cast<int>(shifted));
  }
  block->scale[0] = block->scale[1] = stored;
  block->zero_point = 8;
}

void quantize_block(Quantization quantization, const float* x, QuantBlock32* block) {
  block->min[0] = block->min[1] = 0.0f;
  block->num_scales = 1;
  block->has_min = false;
  if (quantization == Quantization::kW8) {
    quantize_w8(x, block);
  } else {
    quantize_w4(x, block);
  }
}

// One row's fields of one 32-block, inside a panel. `fields` begins at the scales or at the minima.
void put_field(const tk_panel_format& format, uint8_t* fields, int index, float value) {
  if (format.scale_f32) {
    memcpy(fields + 4 * index, &value, 4);
  } else {
    const uint16_t half = tensor::f16_from_f32(value);
    memcpy(fields + 2 * index, &half, 2);
  }
}

float get_field(const tk_panel_format& format, const uint8_t* fields, int index) {
  float value;
  if (format.scale_f32) {
    memcpy(&value, fields + 4 * index, 4);
  } else {
    uint16_t half;
    memcpy(&half, fields + 2 * index, 2);
    value = tensor::f32_from_f16(half);
  }
  return value;
}

void put_block(const tk_panel_format& format, const QuantBlock32& block, int lane, uint8_t* out) {
  for (int i = 0; i < 32; ++i) {
    const int group = i / 4;
    if (format.kind == TK_PANEL_W8) {
      out[128 * group + 4 * lane + i % 4] = block.level[i];
    } else {
      uint8_t& byte = out[128 * (group / 2) + 4 * lane + i % 4];
      byte = group % 2 == 0 ? block.level[i] : static_cast<uint8_t>(byte | (block.level[i] << 4));
    }
  }
  uint8_t* scales = out + tk_scales_offset(&format);
  for (int s = 0; s < format.num_scales; ++s) {
    put_field(format, scales, 32 * s + lane, block.scale[s]);
    if (format.has_min) put_field(format, scales + tk_scales_bytes(&format), 32 * s + lane, block.min[s]);
  }
}

QuantBlock32 zero_block(const tk_panel_format& format) {
  QuantBlock32 block{};
  memset(block.level, format.zero_point, sizeof block.level);
  return block;
}

// A file row as f32, quantised and taken back where the layout says so.
void read_row(const PanelLayout& layout, const WeightRows::Row& row, uint32_t k, float* out) {
  tensor::dequantize_row(row.dtype, row.bytes, k, out);
  if (layout.quantization == Quantization::kNone || tensor::is_quantised(row.dtype)) return;
  QuantBlock32 block;
  for (uint32_t b = 0; b < k / 32; ++b) {
    quantize_block(layout.quantization, out + 32 * b, &block);
    for (int i = 0; i < 32; ++i) {
      out[32 * b + static_cast<uint32_t>(i)] = block.scale[0] * static_cast<float>(block.level[i] - block.zero_point);
    }
  }
}

void pack_float_panel(const PanelLayout& layout, const WeightRows& rows, uint64_t panel, std::vector<float>& buffer,
                      uint8_t* out) {
  const uint32_t k = rows.k();
  memset(out, 0, tk_panel_bytes(&layout.format, k));
  for (uint32_t lane = 0; lane < TK_PANEL_ROWS; ++lane) {
    const WeightRows::Row row = rows.row(panel * TK_PANEL_ROWS + lane);
    if (row.bytes == nullptr) continue;
    read_row(layout, row, k, buffer.data());
    for (uint32_t i = 0; i < k; ++i) {
      if (layout.format.kind == TK_PANEL_F32) {
        memcpy(out + 128ull * i + 4 * lane, &buffer[i], 4);
      } else {
        const uint16_t value = tensor::bf16_from_f32(buffer[i]);
        memcpy(out + 128ull * (i / 2) + 4 * lane + 2 * (i % 2), &value, 2);
      }
    }
  }
}

void pack_block_panel(const PanelLayout& layout, const WeightRows& rows, uint64_t panel, std::vector<float>& buffer,
                      uint8_t* out) {
  const uint32_t k = rows.k();
  const uint32_t block_bytes = tk_block_bytes(&layout.format);
  for (uint32_t lane = 0; lane < TK_PANEL_ROWS; ++lane) {
    const WeightRows::Row row = rows.row(panel * TK_PANEL_ROWS + lane);
    const bool is_zero = row.bytes == nullptr;
    const bool is_float = !is_zero && !tensor::is_quantised(row.dtype);
    QuantBlock32 block = zero_block(layout.format);
    if (is_float) {
      TANDEM_CHECK(layout.quantization != Quantization::kNone);
      tensor::dequantize_row(row.dtype, row.bytes, k, buffer.data());
    } else if (!is_zero) {
      TANDEM_CHECK(same_format(block_format(row.dtype), layout.format));
    }
    for (uint32_t b = 0; b < k / 32; ++b) {
      if (is_float) {
        quantize_block(layout.quantization, buffer.data() + 32 * b, &block);
      } else if (!is_zero) {
        tensor::decode_block32(row.dtype, row.bytes, b, &block);
      }
      put_block(layout.format, block, static_cast<int>(lane), out + static_cast<uint64_t>(b) * block_bytes);
    }
  }
}

}  // namespace

bool same_format(const tk_panel_format& a, const tk_panel_format& b) {
  return a.kind == b.kind && a.zero_point == b.zero_point && a.num_scales == b.num_scales &&
         a.scale_f32 == b.scale_f32 && a.has_min == b.has_min && a.level_min == b.level_min &&
         a.level_max == b.level_max;
}

PanelLayout layout_for(DType dtype, uint32_t k, PackTarget target) {
  PanelLayout layout{};
  if (!tensor::is_quantised(dtype) && k % 32 == 0) layout.quantization = target.quantization;
  if (target.activations == Activations::kBf16) {
    layout.format.kind = TK_PANEL_BF16;
  } else if (target.activations == Activations::kInt8 && tensor::is_quantised(dtype)) {
    layout.format = block_format(dtype);
  } else if (target.activations == Activations::kInt8 && layout.quantization != Quantization::kNone) {
    layout.format = block_format(layout.quantization == Quantization::kW8 ? DType::kQ8_0 : DType::kQ4_0);
  } else {
    layout.format.kind = TK_PANEL_F32;
  }
  return layout;
}

WeightRows::WeightRows(std::vector<WeightPart> parts, bool is_interleaved, uint32_t k)
    : parts_(std::move(parts)), is_interleaved_(is_interleaved), k_(k), num_rows_(0) {
  for (const WeightPart& part : parts_) {
    num_rows_ += is_interleaved_ ? num_panels(part.num_rows) * TK_PANEL_ROWS : part.num_rows;
  }
}

WeightRows WeightRows::concatenated(std::vector<WeightPart> parts, uint32_t k) {
  return WeightRows(std::move(parts), false, k);
}

WeightRows WeightRows::interleaved(WeightPart gate, WeightPart up, uint32_t k) {
  TANDEM_CHECK(gate.num_rows == up.num_rows);
  return WeightRows({gate, up}, true, k);
}

WeightRows::Row WeightRows::row(uint64_t index) const {
  size_t p = 0;
  if (is_interleaved_) {
    const uint64_t panel = index / TK_PANEL_ROWS;
    p = panel % 2;
    index = panel / 2 * TK_PANEL_ROWS + index % TK_PANEL_ROWS;
  } else {
    while (p + 1 < parts_.size() && index >= parts_[p].num_rows) index -= parts_[p++].num_rows;
  }
  const WeightPart& part = parts_[p];
  if (index >= part.num_rows) return {part.dtype, nullptr};
  const uint64_t row_bytes = tensor::row_bytes(part.dtype, k_);
  return {part.dtype, static_cast<const uint8_t*>(part.rows) + index * row_bytes};
}

void pack_panels(const PanelLayout& layout, const WeightRows& rows, uint64_t panel_begin, uint64_t panel_end,
                 uint8_t* packed) {
  const uint64_t panel_bytes = tk_panel_bytes(&layout.format, rows.k());
  const bool is_float = layout.format.kind == TK_PANEL_F32 || layout.format.kind == TK_PANEL_BF16;
  TANDEM_CHECK(is_float || rows.k() % 32 == 0);
  std::vector<float> buffer(rows.k());
  for (uint64_t panel = panel_begin; panel < panel_end; ++panel) {
    uint8_t* out = packed + panel * panel_bytes;
    if (is_float) {
      pack_float_panel(layout, rows, panel, buffer, out);
    } else {
      pack_block_panel(layout, rows, panel, buffer, out);
    }
  }
}

void pack_rows(const PanelLayout& layout, const WeightPart& part, uint32_t k, uint8_t* packed) {
  pack_panels(layout, WeightRows::concatenated({part}, k), 0, num_panels(part.num_rows), packed);
}

void unpack_row(const PanelLayout& layout, const uint8_t* packed, uint32_t k, uint64_t row, float* out) {
  const tk_panel_format& format = layout.format;
  const uint8_t* panel = packed + row / TK_PANEL_ROWS * tk_panel_bytes(&format, k);
  const auto lane = static_cast<uint32_t>(row % TK_PANEL_ROWS);
  for (uint32_t i = 0; i < k; ++i) {
    if (format.kind == TK_PANEL_F32) {
      memcpy(&out[i], panel + 128ull * i + 4 * lane, 4);
      continue;
    }
    if (format.kind == TK_PANEL_BF16) {
      uint16_t value;
      memcpy(&value, panel + 128ull * (i / 2) + 4 * lane + 2 * (i % 2), 2);
      out[i] = tensor::f32_from_bf16(value);
      continue;
    }
    const uint8_t* block = panel + static_cast<uint64_t>(i / 32) * tk_block_bytes(&format);
    const uint32_t group = i % 32 / 4;
    int level = 0;
    if (format.kind == TK_PANEL_W8) {
      level = block[128 * group + 4 * lane + i % 4];
    } else {
      level = (block[128 * (group / 2) + 4 * lane + i % 4] >> (4 * (group % 2))) & 15;
    }
    const uint8_t* scales = block + tk_scales_offset(&format);
    const int field = static_cast<int>(32 * (format.num_scales == 2 ? i % 32 / 16 : 0) + lane);
    const float scaled = get_field(format, scales, field) * static_cast<float>(level - format.zero_point);
    out[i] = format.has_min ? scaled + get_field(format, scales + tk_scales_bytes(&format), field) : scaled;
  }
}

}  // namespace tandem::kernels
