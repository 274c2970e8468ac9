#include <algorithm>

#include "plugins/cpu/cpu_op.h"
#include "plugins/cpu/weights.h"

namespace tandem::cpu {

using namespace kernels;  // C structs and constants with a prefix of their own
namespace {

// Rows of activations that one item multiplies: their tile of sums stays in the first-level cache.
constexpr uint32_t kTileRows = 64;

class LinearOp final : public CpuOp {
 public:
  LinearOp(const PlanContext& context, const td_op& op, const tk_panel_format& format)
      : context_(context), kernels_(*context.linear), op_(op) {
    const td_weight& weight = context.weights[op.weight[0]];
    linear_.panels = static_cast<const uint8_t*>(weight.address);
    linear_.format = format;
    linear_.k = weight.desc.k;
    linear_.panel_bytes = tk_panel_bytes(&format, weight.desc.k);
    linear_.segments = weight.desc.segments;
    linear_.x_stride = op.in[0].row_bytes;
    num_columns_ = op.gated != 0 ? weight.desc.n / 2 : weight.desc.n;
    num_panels_ = (num_columns_ + TK_PANEL_ROWS - 1) / TK_PANEL_ROWS;
    if (op.weight[1] != TD_NO_WEIGHT) epilogue_.bias = static_cast<const float*>(context.weights[op.weight[1]].address);
    epilogue_.residual_stride = op.in[1].row_bytes;
    epilogue_.out_stride = op.out[0].row_bytes;
    epilogue_.out_kind = rows_kind(op.out[0].format);
    epilogue_.out_columns = op.out[0].columns_total;
    epilogue_.activation = op.gated != 0 ? TK_ACTIVATION_SILU_GATE : TK_ACTIVATION_NONE;
  }

  uint32_t begin(const td_bindings& bindings) override {
    linear_.x = operand_base(op_.in[0], bindings);
    epilogue_.out = operand_base(op_.out[0], bindings);
    if (op_.in[1].space != TD_NONE) {
      epilogue_.residual = reinterpret_cast<const float*>(operand_base(op_.in[1], bindings));
    }
    num_rows_ = num_rows(op_.in[0].rows, bindings);
    num_tiles_ = (num_rows_ + kTileRows - 1) / kTileRows;
    return num_panels_ * num_tiles_;
  }

  // Of a gated linear, the first of two panels.
  WeightRange weights_of(uint32_t item) const override {
    const uint32_t panel = item / num_tiles_;
    return {panel_address(op_.gated != 0 ? 2 * panel : panel), static_cast<uint32_t>(linear_.panel_bytes)};
  }

  void work(uint32_t item, uint32_t member) override {
    // Tiles run fastest, so that a panel's bytes are read from memory once for all rows.
    const uint32_t panel = item / num_tiles_;
    const uint32_t row_begin = item % num_tiles_ * kTileRows;
    alignas(64) float sums[2][kTileRows * TK_PANEL_ROWS];
    tk_tile tile{sums[0], TK_PANEL_ROWS, row_begin, std::min(row_begin + kTileRows, num_rows_)};
    tk_tile up = tile;
    up.values = sums[1];
    const WeightRange own = weights_of(item);
    const WeightRange& ahead = context_.ahead[member];
    if (ahead.begin != own.begin) {
      tile.ahead = up.ahead = ahead.begin;
      tile.ahead_bytes = up.ahead_bytes = ahead.size_bytes;
    }
    const uint32_t column = panel * TK_PANEL_ROWS;
    const uint32_t columns = std::min<uint32_t>(TK_PANEL_ROWS, num_columns_ - column);
    if (op_.gated != 0) {
      tile.ahead = own.begin + own.size_bytes;  // the gate's panel, then `up`
      tile.ahead_bytes = row_begin == 0 ? own.size_bytes : 0;
      kernels::linear_panel(kernels_, linear_, 2 * panel, tile);
      kernels::linear_panel(kernels_, linear_, 2 * panel + 1, up);
      kernels_.epilogue(&epilogue_, &tile, &up, column, columns);
    } else {
      kernels::linear_panel(kernels_, linear_, panel, tile);
      kernels_.epilogue(&epilogue_, &tile, nullptr, column, columns);
    }
  }

 private:
  const uint8_t* panel_address(uint32_t panel) const { return linear_.panels + panel * linear_.panel_bytes; }

  const PlanContext& context_;
  const kernels::LinearKernels& kernels_;
  td_op op_;
  tk_linear linear_{};
  tk_epilogue epilogue_{};
  uint32_t num_columns_ = 0, num_panels_ = 0, num_rows_ = 0, num_tiles_ = 0;
};

}  // namespace

Status make_linear(PlanContext& context, const td_op& op, CpuOps& ops) {
  if (op.weight[0] >= context.weights.size()) return Error{ErrorCode::kInvalidArgument, "linear without a weight"};
  const td_weight& weight = context.weights[op.weight[0]];
  TRY_ASSIGN(const kernels::PanelLayout layout, panel_layout(weight.desc));
  if (tk_rows_kind(layout.format.kind) != rows_kind(op.in[0].format)) {
    return Error{ErrorCode::kInvalidArgument, "linear: the weight's panels do not take this input format"};
  }
  const uint32_t columns = op.gated != 0 ? weight.desc.n / 2 : weight.desc.n;
  if (op.in[0].columns != weight.desc.k || op.out[0].columns != columns) {
    return Error{ErrorCode::kInvalidArgument, "linear: shapes of input, weight and output do not fit"};
  }
  if (op.out[0].format != TD_F32 && (op.out[0].column_begin != 0 || op.out[0].columns % 32 != 0)) {
    return Error{ErrorCode::kInvalidArgument, "linear: a quantised output must be whole rows of 32 columns"};
  }
  ops.push_back(std::make_unique<LinearOp>(context, op, layout.format));
  return Done{};
}

}  // namespace tandem::cpu
