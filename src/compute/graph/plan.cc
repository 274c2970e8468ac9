#include "compute/graph/plan.h"

#include "base/check.h"

namespace tandem::graph {
namespace {

td_operand lower_operand(const Graph& graph, ValueId id, const MemoryPlan& memory, const RowBytes& row_bytes) {
  const Value& value = graph.values[id];
  const Value& base = graph.values[graph.base_of(id)];
  td_operand operand{};
  operand.space = base.external_slot == kNone ? TD_ARENA : TD_EXTERNAL;
  operand.format = value.format;
  operand.rows = value.rows;
  operand.slot = base.external_slot == kNone ? 0 : base.external_slot;
  operand.offset = base.external_slot == kNone ? memory.offset_bytes[id] : 0;
  operand.row_bytes = row_bytes(base.format, base.columns);
  operand.columns = value.columns;
  operand.column_begin = value.base == kNone ? 0 : value.column_begin;
  operand.columns_total = base.columns;
  return operand;
}

}  // namespace

Plan lower(const Graph& graph, const MemoryPlan& memory, const RowBytes& row_bytes) {
  Plan plan;
  plan.arena_bytes = memory.arena_bytes;
  for (const Node& node : graph.nodes) {
    td_op op{};
    op.kind = node.op;
    TANDEM_CHECK(node.in.size() <= TD_MAX_OPERANDS && node.weights.size() <= TD_MAX_OPERANDS);
    for (size_t i = 0; i < node.in.size(); ++i) op.in[i] = lower_operand(graph, node.in[i], memory, row_bytes);
    if (node.out != kNone) op.out[0] = lower_operand(graph, node.out, memory, row_bytes);
    for (size_t i = 0; i < TD_MAX_OPERANDS; ++i) {
      op.weight[i] = i < node.weights.size() && node.weights[i] != kNone ? node.weights[i] : TD_NO_WEIGHT;
    }
    const OpAttributes& attributes = node.attributes;
    op.layer = attributes.layer;
    op.gated = attributes.gated ? 1 : 0;
    op.num_heads = attributes.num_heads;
    op.num_kv_heads = attributes.num_kv_heads;
    op.head_dim = attributes.head_dim;
    op.rotary_dim = attributes.rotary_dim;
    op.rope_interleaved = attributes.rope_interleaved ? 1 : 0;
    op.window = attributes.window;
    op.eps = attributes.eps;
    op.scale = attributes.scale;
    plan.ops.push_back(op);
  }
  return plan;
}

GraphCost cost_of(const Graph& graph, const RowBytes& row_bytes, const WeightBytes& weight_bytes,
                  uint64_t kv_layer_bytes) {
  GraphCost cost;
  cost.num_ops = static_cast<uint32_t>(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    for (ValueId id : node.in) {
      cost.activation_bytes_read += row_bytes(graph.values[id].format, graph.values[id].columns);
    }
    if (node.out != kNone) {
      cost.activation_bytes_written += row_bytes(graph.values[node.out].format, graph.values[node.out].columns);
    }
    if (node.op == TD_OP_LINEAR) {
      cost.weight_bytes += weight_bytes(graph.weights[node.weights[0]]);
    }
    if (node.op == TD_OP_KV_WRITE || node.op == TD_OP_ROPE_KV_WRITE) cost.kv_bytes_written += kv_layer_bytes;
  }
  return cost;
}

}  // namespace tandem::graph
