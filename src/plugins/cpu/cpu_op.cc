#include "plugins/cpu/cpu_op.h"

namespace tandem::cpu {

using namespace kernels;  // C structs and constants with a prefix of their own
namespace {

uint32_t element_bytes(uint32_t format) { return format == TD_BF16 ? 2 : 4; }

}  // namespace

uint8_t* operand_base(const td_operand& operand, const td_bindings& bindings) {
  void* space = operand.space == TD_ARENA ? bindings.arena : bindings.external[operand.slot];
  auto* base = static_cast<uint8_t*>(space) + operand.offset;
  return operand.format == TD_Q8 ? base : base + uint64_t{operand.column_begin} * element_bytes(operand.format);
}

uint32_t num_rows(uint32_t rows, const td_bindings& bindings) {
  return rows == TD_ROWS_TOKENS ? bindings.num_tokens : bindings.num_outputs;
}

uint8_t rows_kind(uint32_t format) {
  if (format == TD_BF16) return TK_ROWS_BF16;
  return format == TD_Q8 ? TK_ROWS_Q8 : TK_ROWS_F32;
}

Status make_ops(PlanContext& context, const td_op& op, CpuOps& ops) {
  switch (op.kind) {
    case TD_OP_LINEAR: return make_linear(context, op, ops);
    case TD_OP_ATTENTION: return make_attention(context, op, ops);
    case TD_OP_ROPE:
    case TD_OP_KV_WRITE:
    case TD_OP_ROPE_KV_WRITE: return make_rope_kv(context, op, ops);
    case TD_OP_EMBED:
    case TD_OP_RMS_NORM:
    case TD_OP_QUANTIZE:
    case TD_OP_HEAD_NORM:
    case TD_OP_SILU_MUL:
    case TD_OP_ADD:
    case TD_OP_GATHER_ROWS:
    case TD_OP_ARGMAX: return make_row_op(context, op, ops);
    default: return Error{ErrorCode::kInvalidArgument, "unknown op " + std::to_string(op.kind)};
  }
}

}  // namespace tandem::cpu
