#include "compute/graph/graph.h"

#include <utility>

namespace tandem::graph {

ValueId Graph::add_value(Value value) {
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size() - 1);
}

WeightId Graph::add_weight(Weight weight) {
  weights.push_back(std::move(weight));
  return static_cast<WeightId>(weights.size() - 1);
}

ValueId Graph::add_node(Node node, Value value) {
  node.out = add_value(std::move(value));
  nodes.push_back(std::move(node));
  return nodes.back().out;
}

const char* op_name(td_op_kind op) {
  switch (op) {
    case TD_OP_EMBED: return "embed";
    case TD_OP_RMS_NORM: return "rms_norm";
    case TD_OP_QUANTIZE: return "quantize";
    case TD_OP_LINEAR: return "linear";
    case TD_OP_HEAD_NORM: return "head_norm";
    case TD_OP_ROPE: return "rope";
    case TD_OP_KV_WRITE: return "kv_write";
    case TD_OP_ATTENTION: return "attention";
    case TD_OP_SILU_MUL: return "silu_mul";
    case TD_OP_ADD: return "add";
    case TD_OP_GATHER_ROWS: return "gather_rows";
    case TD_OP_ARGMAX: return "argmax";
    case TD_OP_ROPE_KV_WRITE: return "rope_kv_write";
  }
  return "?";
}

const char* format_name(td_format format) {
  switch (format) {
    case TD_F32: return "f32";
    case TD_BF16: return "bf16";
    case TD_Q8: return "q8";
    case TD_I32: return "i32";
  }
  return "?";
}

}  // namespace tandem::graph
