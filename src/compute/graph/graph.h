#pragma once
// Graph: what one step of a model computes, as ops on values; before and after the passes. Plain data that owns
// nothing of the weight files. Node order is the order of execution; side effects (KV writes) rely on it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compute/device/device_abi.h"
#include "compute/tensor/dtype.h"

namespace tandem::graph {

using ValueId = uint32_t;
using WeightId = uint32_t;
inline constexpr uint32_t kNone = 0xffffffffu;

// A matrix with one row per token (or per requested output) of the step. A *view* is a range of columns of `base`.
struct Value {
  std::string name;
  td_rows rows = TD_ROWS_TOKENS;
  td_format format = TD_F32;
  uint32_t columns = 0;
  ValueId base = kNone;
  uint32_t column_begin = 0;      // of a view
  uint32_t external_slot = kNone; // lives outside the arena: bindings.external[slot]
};

// Consecutive rows of a weight as a file holds them; borrows the file's mapping.
struct WeightPart {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  uint32_t num_rows = 0;
  std::span<const uint8_t> bytes;
};

struct Weight {
  std::string name;
  td_weight_use use = TD_WEIGHT_LINEAR;
  std::vector<WeightPart> parts;  // stacked by rows; two equal ones side by side when `interleave`
  uint32_t n = 0, k = 0;
  uint32_t segments = 1;
  bool interleave = false;
  td_format activation = TD_F32;  // of the linear's input
  bool is_derived = false;        // computed at load, not found in a file
};

struct OpAttributes {
  uint32_t layer = 0;
  bool gated = false;
  uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0, rotary_dim = 0;
  bool rope_interleaved = false;
  uint32_t window = 0;
  float eps = 0;
  float scale = 0;
};

// Operands stand as device_abi.h lists them for the op.
struct Node {
  td_op_kind op = TD_OP_ADD;
  std::vector<ValueId> in;
  ValueId out = kNone;
  std::vector<WeightId> weights;  // kNone where an optional one is absent
  OpAttributes attributes;
};

struct Graph {
  std::vector<Value> values;
  std::vector<Weight> weights;
  std::vector<Node> nodes;

  ValueId add_value(Value value);
  WeightId add_weight(Weight weight);
  // Adds a node whose new output is `value`; returns the output.
  ValueId add_node(Node node, Value value);
  // The value that holds a view's bytes; the value itself when it is none.
  ValueId base_of(ValueId value) const { return values[value].base == kNone ? value : values[value].base; }
};

const char* op_name(td_op_kind op);
const char* format_name(td_format format);

}  // namespace tandem::graph
