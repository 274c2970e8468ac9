#include <string.h>

#include <algorithm>

#include "compute/kernels/embed_row.h"
#include "plugins/cpu/cpu_op.h"
#include "plugins/cpu/weights.h"

namespace tandem::cpu {
namespace {

// Ops whose rows are independent: a work item is a few rows.
constexpr uint32_t kRowsPerItem = 4;

class RowOp : public CpuOp {
 public:
  RowOp(const PlanContext& context, const td_op& op) : context_(context), op_(op) {}

  uint32_t begin(const td_bindings& bindings) override {
    bindings_ = &bindings;
    num_rows_ = num_rows(op_.out[0].rows, bindings);
    for (uint32_t i = 0; i < TD_MAX_OPERANDS; ++i) {
      if (op_.in[i].space != TD_NONE) in_[i] = operand_base(op_.in[i], bindings);
    }
    out_ = operand_base(op_.out[0], bindings);
    return (num_rows_ + kRowsPerItem - 1) / kRowsPerItem;
  }

  void work(uint32_t item, uint32_t /*member*/) override {
    const uint32_t end = std::min(num_rows_, (item + 1) * kRowsPerItem);
    for (uint32_t row = item * kRowsPerItem; row < end; ++row) row_work(row);
  }

 protected:
  virtual void row_work(uint32_t row) = 0;

  const float* in_row(uint32_t operand, uint32_t row) const {
    return reinterpret_cast<const float*>(in_[operand] + row * op_.in[operand].row_bytes);
  }
  uint8_t* out_row(uint32_t row) const { return out_ + row * op_.out[0].row_bytes; }
  const float* vector(uint32_t weight) const {
    return static_cast<const float*>(context_.weights[op_.weight[weight]].address);
  }
  // Stores one f32 row in the output's format.
  void store_row(uint32_t row, const float* values) const {
    const uint32_t columns = op_.out[0].columns;
    const kernels::tk_quantize quantize{values, 0, out_row(row), 0, columns, rows_kind(op_.out[0].format)};
    context_.linear->quantize(&quantize, 0, 1);
  }

  const PlanContext& context_;
  const td_op op_;
  const td_bindings* bindings_ = nullptr;
  uint32_t num_rows_ = 0;
  uint8_t* in_[TD_MAX_OPERANDS] = {};
  uint8_t* out_ = nullptr;
};

class EmbedOp final : public RowOp {
 public:
  EmbedOp(const PlanContext& context, const td_op& op, tensor::DType dtype) : RowOp(context, op), dtype_(dtype) {}

 private:
  void row_work(uint32_t row) override {
    const auto token = static_cast<uint64_t>(bindings_->token_ids[row]);
    kernels::embed_row(dtype_, context_.weights[op_.weight[0]].address, token, op_.out[0].columns,
                       reinterpret_cast<float*>(out_row(row)));
  }
  tensor::DType dtype_;
};

class RmsNormOp final : public RowOp {
 public:
  RmsNormOp(const PlanContext& context, const td_op& op) : RowOp(context, op), scratch_(context.num_members) {
    for (std::vector<float>& row : scratch_) row.resize(op.in[0].columns);
  }
  void work(uint32_t item, uint32_t member) override {
    float* normed = scratch_[member].data();
    const uint32_t end = std::min(num_rows_, (item + 1) * kRowsPerItem);
    for (uint32_t row = item * kRowsPerItem; row < end; ++row) {
      context_.element->rms_norm(op_.in[0].columns, op_.eps, in_row(0, row), vector(0), normed);
      store_row(row, normed);
    }
  }

 private:
  void row_work(uint32_t /*row*/) override {}
  std::vector<std::vector<float>> scratch_;  // one row per member
};

class HeadNormOp final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  void row_work(uint32_t row) override {
    for (uint32_t head = 0; head < op_.num_heads; ++head) {
      const uint32_t column = head * op_.head_dim;
      context_.element->rms_norm(op_.head_dim, op_.eps, in_row(0, row) + column, vector(0),
                                 reinterpret_cast<float*>(out_row(row)) + column);
    }
  }
};

class QuantizeOp final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  void row_work(uint32_t row) override { store_row(row, in_row(0, row)); }
};

class SiluMulOp final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  void row_work(uint32_t row) override {
    context_.element->silu_mul(op_.out[0].columns, in_row(0, row), in_row(1, row),
                               reinterpret_cast<float*>(out_row(row)));
  }
};

class AddOp final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  void row_work(uint32_t row) override {
    const float* a = in_row(0, row);
    const float* b = in_row(1, row);
    auto* out = reinterpret_cast<float*>(out_row(row));
    for (uint32_t i = 0; i < op_.out[0].columns; ++i) out[i] = a[i] + b[i];
  }
};

class GatherRowsOp final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  void row_work(uint32_t row) override {
    memcpy(out_row(row), in_row(0, bindings_->output_rows[row]), op_.out[0].row_bytes);
  }
};

class ArgmaxOp final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  void row_work(uint32_t row) override {
    const kernels::tk_argmax best = context_.element->argmax(op_.in[0].columns, in_row(0, row));
    *reinterpret_cast<int32_t*>(out_row(row)) = best.is_valid ? static_cast<int32_t>(best.index) : -1;
  }
};

}  // namespace

Status make_row_op(PlanContext& context, const td_op& op, CpuOps& ops) {
  const bool keeps_columns = op.kind != TD_OP_EMBED && op.kind != TD_OP_ARGMAX;
  if (keeps_columns && op.in[0].columns != op.out[0].columns) {
    return Error{ErrorCode::kInvalidArgument, "input and output of a row op differ in columns"};
  }
  switch (op.kind) {
    case TD_OP_EMBED: {
      TRY_ASSIGN(const tensor::DType dtype, to_dtype(context.weights[op.weight[0]].desc.parts[0].dtype));
      ops.push_back(std::make_unique<EmbedOp>(context, op, dtype));
      break;
    }
    case TD_OP_RMS_NORM: ops.push_back(std::make_unique<RmsNormOp>(context, op)); break;
    case TD_OP_HEAD_NORM: ops.push_back(std::make_unique<HeadNormOp>(context, op)); break;
    case TD_OP_QUANTIZE: ops.push_back(std::make_unique<QuantizeOp>(context, op)); break;
    case TD_OP_SILU_MUL: ops.push_back(std::make_unique<SiluMulOp>(context, op)); break;
    case TD_OP_ADD: ops.push_back(std::make_unique<AddOp>(context, op)); break;
    case TD_OP_GATHER_ROWS: ops.push_back(std::make_unique<GatherRowsOp>(context, op)); break;
    default: ops.push_back(std::make_unique<ArgmaxOp>(context, op)); break;
  }
  return Done{};
}

}  // namespace tandem::cpu
