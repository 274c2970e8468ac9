#include "plugins/cpu/cpu_op.h"

#include <iterator>

namespace tandem::cpu {

using namespace kernels;  // C structs and constants with a prefix of their own
namespace {

uint32_t element_bytes(uint32_t format) { return format == TD_BF16 ? 2 : 4; }

// What each kind of op cannot do without, by td_op_kind.
struct OpNeeds {
  uint32_t num_inputs;
  uint32_t num_weights;
  uint32_t max_weights;  // the ones between are optional
  bool has_output;
};
constexpr OpNeeds kNeeds[] = {
    {0, 1, 1, true},   // EMBED
    {1, 1, 1, true},   // RMS_NORM
    {1, 0, 0, true},   // QUANTIZE
    {1, 1, 2, true},   // LINEAR
    {1, 1, 1, true},   // HEAD_NORM
    {1, 1, 1, true},   // ROPE
    {2, 0, 0, false},  // KV_WRITE
    {1, 0, 0, true},   // ATTENTION
    {2, 0, 0, true},   // SILU_MUL
    {2, 0, 0, true},   // ADD
    {1, 0, 0, true},   // GATHER_ROWS
    {1, 0, 0, true},   // ARGMAX
    {3, 1, 3, true},   // ROPE_KV_WRITE
};

Status check_operand(const PlanContext& context, const td_operand& operand) {
  if (operand.space == TD_NONE) return Done{};
  if (operand.columns_total < operand.columns || operand.columns_total - operand.columns < operand.column_begin) {
    return Error{ErrorCode::kInvalidArgument, "an operand's columns reach beyond its rows"};
  }
  if (operand.row_bytes < tk_activation_row_bytes(rows_kind(operand.format), operand.columns_total)) {
    return Error{ErrorCode::kInvalidArgument, "an operand's rows are shorter than its columns"};
  }
  if (operand.space == TD_EXTERNAL && operand.slot >= std::size(td_bindings{}.external)) {
    return Error{ErrorCode::kInvalidArgument, "an operand names an external slot that does not exist"};
  }
  const uint64_t rows = operand.rows == TD_ROWS_TOKENS ? context.desc.max_tokens : context.desc.max_outputs;
  if (operand.space == TD_ARENA && operand.offset + rows * operand.row_bytes > context.desc.arena_bytes) {
    return Error{ErrorCode::kInvalidArgument, "an operand reaches beyond the arena"};
  }
  return Done{};
}

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

Status check_op(const PlanContext& context, const td_op& op) {
  if (op.kind >= std::size(kNeeds)) {
    return Error{ErrorCode::kInvalidArgument, "unknown op " + std::to_string(op.kind)};
  }
  const OpNeeds& needs = kNeeds[op.kind];
  for (uint32_t i = 0; i < TD_MAX_OPERANDS; ++i) {
    if (i < needs.num_inputs && op.in[i].space == TD_NONE) {
      return Error{ErrorCode::kInvalidArgument, "input " + std::to_string(i) + " is missing"};
    }
    TRY(check_operand(context, op.in[i]));
    const bool is_absent = i >= needs.max_weights || (i >= needs.num_weights && op.weight[i] == TD_NO_WEIGHT);
    if (!is_absent && op.weight[i] >= context.weights.size()) {
      return Error{ErrorCode::kInvalidArgument, "weight " + std::to_string(i) + " is missing"};
    }
  }
  if (needs.has_output && op.out[0].space == TD_NONE) {
    return Error{ErrorCode::kInvalidArgument, "the output is missing"};
  }
  return check_operand(context, op.out[0]);
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
