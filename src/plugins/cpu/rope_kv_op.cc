#include <algorithm>

#include "compute/kernels/kv_write.h"
#include "plugins/cpu/cpu_op.h"

namespace tandem::cpu {
namespace {

constexpr uint32_t kRowsPerItem = 4;

// ROPE, KV_WRITE and both in one (with the head norms): per row, independent of the other rows.
class RopeKvOp final : public CpuOp {
 public:
  RopeKvOp(const PlanContext& context, const td_op& op) : context_(context), op_(op), scratch_(context.num_members) {
    for (std::vector<float>& head : scratch_) head.resize(op.head_dim);
    shape_ = {op.head_dim, op.rotary_dim,
              op.rope_interleaved != 0 ? kernels::TK_ROPE_ADJACENT : kernels::TK_ROPE_HALVES};
    if (op.kind != TD_OP_KV_WRITE) table_ = vector(0);
    if (op.kind == TD_OP_ROPE_KV_WRITE && op.weight[1] != TD_NO_WEIGHT) q_norm_ = vector(1), k_norm_ = vector(2);
  }

  uint32_t begin(const td_bindings& bindings) override {
    bindings_ = &bindings;
    for (uint32_t i = 0; i < TD_MAX_OPERANDS; ++i) {
      if (op_.in[i].space != TD_NONE) in_[i] = operand_base(op_.in[i], bindings);
    }
    if (op_.out[0].space != TD_NONE) out_ = operand_base(op_.out[0], bindings);
    return (bindings.num_tokens + kRowsPerItem - 1) / kRowsPerItem;
  }

  void work(uint32_t item, uint32_t member) override {
    const uint32_t end = std::min(bindings_->num_tokens, (item + 1) * kRowsPerItem);
    for (uint32_t row = item * kRowsPerItem; row < end; ++row) {
      const td_sequence& sequence = bindings_->sequences[context_.step.sequence_of_row[row]];
      const uint32_t position = sequence.position + (row - sequence.row_begin);
      if (op_.kind != TD_OP_KV_WRITE) {
        auto* out = reinterpret_cast<float*>(out_ + row * op_.out[0].row_bytes);
        for (uint32_t head = 0; head < op_.num_heads; ++head) {
          rotate(in_head(0, row, head), q_norm_, position, out + head * op_.head_dim);
        }
      }
      if (op_.kind == TD_OP_ROPE) continue;
      if (!write_row(row, sequence, position, scratch_[member].data()) && bindings_->row_faults != nullptr) {
        bindings_->row_faults[row] = 1;
      }
    }
  }

 private:
  const float* vector(uint32_t weight) const {
    return static_cast<const float*>(context_.weights[op_.weight[weight]].address);
  }
  const float* in_head(uint32_t operand, uint32_t row, uint32_t head) const {
    return reinterpret_cast<const float*>(in_[operand] + row * op_.in[operand].row_bytes) + head * op_.head_dim;
  }

  void rotate(const float* in, const float* norm, uint32_t position, float* out) const {
    if (norm != nullptr) {
      context_.element->rms_norm(op_.head_dim, op_.eps, in, norm, out);
      in = out;
    }
    context_.element->rope(&shape_, table_ + uint64_t{position} * op_.rotary_dim, in, out);
  }

  // False when a key or value is not finite.
  bool write_row(uint32_t row, const td_sequence& sequence, uint32_t position, float* rotated) const {
    const td_kv_layout& layout = context_.desc.kv;
    const uint32_t k_operand = op_.kind == TD_OP_KV_WRITE ? 0 : 1;
    const uint32_t in_block = position % layout.block_tokens;
    const uint64_t block_offset = sequence.blocks[position / layout.block_tokens] * layout.block_stride;
    const uint64_t tile_offset =
        uint64_t{in_block / kernels::TK_TILE_TOKENS} * kernels::tk_kv_tile_bytes(layout.kind, layout.head_dim);
    bool is_finite = true;
    for (uint32_t head = 0; head < op_.num_kv_heads; ++head) {
      const float* k = in_head(k_operand, row, head);
      if (op_.kind == TD_OP_ROPE_KV_WRITE) {
        rotate(k, k_norm_, position, rotated);
        k = rotated;
      }
      uint8_t* tile = kv_base(layout, bindings_->kv, op_.layer, head) + block_offset + tile_offset;
      is_finite &= kernels::kv_write(static_cast<kernels::tk_kv_kind>(layout.kind), op_.head_dim, k,
                                     in_head(k_operand + 1, row, head), tile, in_block % kernels::TK_TILE_TOKENS);
    }
    return is_finite;
  }

  const PlanContext& context_;
  const td_op op_;
  std::vector<std::vector<float>> scratch_;  // one head per member
  kernels::tk_rope shape_{};
  const float* table_ = nullptr;
  const float* q_norm_ = nullptr;
  const float* k_norm_ = nullptr;
  const td_bindings* bindings_ = nullptr;
  uint8_t* in_[TD_MAX_OPERANDS] = {};
  uint8_t* out_ = nullptr;
};

}  // namespace

Status make_rope_kv(PlanContext& context, const td_op& op, CpuOps& ops) {
  if (op.kind != TD_OP_KV_WRITE) {
    const td_weight& table = context.weights[op.weight[0]];
    if (table.desc.k != op.rotary_dim || table.desc.n < context.desc.max_positions) {
      return Error{ErrorCode::kInvalidArgument, "the RoPE table is smaller than the positions in use"};
    }
  }
  if (op.kind == TD_OP_ROPE_KV_WRITE && (op.weight[1] == TD_NO_WEIGHT) != (op.weight[2] == TD_NO_WEIGHT)) {
    return Error{ErrorCode::kInvalidArgument, "queries and keys have a norm each, or none has"};
  }
  ops.push_back(std::make_unique<RopeKvOp>(context, op));
  return Done{};
}

}  // namespace tandem::cpu
