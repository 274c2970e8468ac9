#include "compute/model/decoder_builder.h"

#include <cmath>

#include "base/check.h"

namespace tandem::model {

using graph::kNone;
using graph::Node;
using graph::OpAttributes;
using graph::Value;
using graph::ValueId;
using graph::Weight;
using graph::WeightId;

namespace {

graph::WeightPart part_of(const TensorEntry& tensor) {
  return {tensor.name, tensor.dtype, static_cast<uint32_t>(tensor.num_rows()), tensor.bytes};
}

uint32_t columns_of(const TensorEntry& tensor) { return static_cast<uint32_t>(tensor.shape.back()); }

}  // namespace

DecoderBuilder::DecoderBuilder(graph::Graph& graph, const ModelConfig& config, const BuildOptions& options)
    : graph_(graph), config_(config), options_(options) {}

td_format DecoderBuilder::linear_format(const TensorEntry& weight) const {
  switch (options_.activations) {
    case Activations::kF32: return TD_F32;
    case Activations::kBF16: return TD_BF16;
    case Activations::kInt8: break;
  }
  const bool is_packed_to_int = tensor::is_quantised(weight.dtype) || options_.quantization != TD_QUANTIZE_NONE;
  return is_packed_to_int && columns_of(weight) % 32 == 0 ? TD_Q8 : TD_F32;
}

WeightId DecoderBuilder::vector_weight(const TensorEntry& tensor) {
  Weight weight;
  weight.name = tensor.name;
  weight.use = TD_WEIGHT_VECTOR;
  weight.n = static_cast<uint32_t>(tensor.num_elements());
  weight.k = 1;
  weight.parts = {{tensor.name, tensor.dtype, weight.n, tensor.bytes}};
  return graph_.add_weight(std::move(weight));
}

ValueId DecoderBuilder::as_input_of(const TensorEntry& weight, ValueId input) {
  const td_format format = linear_format(weight);
  if (format == TD_F32) return input;
  auto [place, is_new] = converted_.try_emplace({input, format}, kNone);
  if (is_new) {
    Value value = graph_.values[input];
    value.format = format;
    value.name += format == TD_Q8 ? ".q8" : ".bf16";
    place->second = graph_.add_node({TD_OP_QUANTIZE, {input}, kNone, {}, {.layer = layer_}}, value);
  }
  return place->second;
}

ValueId DecoderBuilder::linear(ValueId input, const TensorEntry& weight, const TensorEntry* bias, uint32_t segments,
                               const std::string& name) {
  const ValueId x = as_input_of(weight, input);
  Weight matrix;
  matrix.name = weight.name;
  matrix.parts = {part_of(weight)};
  matrix.n = static_cast<uint32_t>(weight.num_rows());
  matrix.k = columns_of(weight);
  matrix.segments = segments;
  matrix.activation = graph_.values[x].format;
  Value out;
  out.name = name;
  out.rows = graph_.values[x].rows;
  out.columns = matrix.n;
  const WeightId matrix_id = graph_.add_weight(std::move(matrix));
  const WeightId bias_id = bias != nullptr ? vector_weight(*bias) : kNone;
  return graph_.add_node({TD_OP_LINEAR, {x}, kNone, {matrix_id, bias_id}, {.layer = layer_}}, std::move(out));
}

ValueId DecoderBuilder::norm(ValueId input, const TensorEntry& weight, const std::string& name) {
  Value out = graph_.values[input];
  out.name = name;
  out.external_slot = kNone;
  OpAttributes attributes{.layer = layer_};
  attributes.eps = config_.norm_eps;
  return graph_.add_node({TD_OP_RMS_NORM, {input}, kNone, {vector_weight(weight)}, attributes}, std::move(out));
}

ValueId DecoderBuilder::head_op(td_op_kind op, ValueId input, WeightId weight, uint32_t num_heads,
                                const std::string& name) {
  Value out = graph_.values[input];
  out.name = name;
  OpAttributes attributes{.layer = layer_};
  attributes.num_heads = num_heads;
  attributes.head_dim = config_.head_dim;
  if (op == TD_OP_HEAD_NORM) {
    attributes.eps = config_.norm_eps;
  } else {
    attributes.rotary_dim = config_.head_dim;
    attributes.rope_interleaved = config_.rope.is_interleaved;
  }
  return graph_.add_node({op, {input}, kNone, {weight}, attributes}, std::move(out));
}

void DecoderBuilder::add_residual(ValueId summand, const std::string& name) {
  Value out = graph_.values[stream_];
  out.name = name;
  stream_ = graph_.add_node({TD_OP_ADD, {stream_, summand}, kNone, {}, {.layer = layer_}}, std::move(out));
}

void DecoderBuilder::embed(const TensorEntry& table) {
  Weight weight;
  weight.name = table.name + "(rows)";
  weight.use = TD_WEIGHT_ROWS;
  weight.parts = {part_of(table)};
  weight.n = static_cast<uint32_t>(table.num_rows());
  weight.k = columns_of(table);
  Value out;
  out.name = "x";
  out.columns = config_.hidden;
  const WeightId id = graph_.add_weight(std::move(weight));
  stream_ = graph_.add_node({TD_OP_EMBED, {}, kNone, {id}, {}}, std::move(out));
}

void DecoderBuilder::attention_block(uint32_t layer, const LayerTensors& tensors, AttentionVariant variant) {
  layer_ = layer;
  const std::string suffix = "." + std::to_string(layer);
  if (rope_table_ == kNone) {
    Weight table;
    table.name = "rope_table";
    table.use = TD_WEIGHT_VECTOR;
    const auto* bytes = reinterpret_cast<const uint8_t*>(options_.rope_table.data());
    table.parts = {
        {"rope_table", tensor::DType::kF32, options_.num_positions, {bytes, options_.rope_table.size_bytes()}}};
    table.n = options_.num_positions;
    table.k = config_.head_dim;
    table.is_derived = true;
    rope_table_ = graph_.add_weight(std::move(table));
  }
  const ValueId h = norm(stream_, *tensors.attn_norm, "attn_in" + suffix);
  const auto bias = [&](const TensorEntry* tensor) { return variant.has_qkv_bias ? tensor : nullptr; };
  // Inputs are converted before the three linears, so that these stand side by side for the fuse pass.
  for (const TensorEntry* weight : {tensors.q, tensors.k, tensors.v}) as_input_of(*weight, h);
  ValueId q = linear(h, *tensors.q, bias(tensors.q_bias), 1, "q" + suffix);
  ValueId k = linear(h, *tensors.k, bias(tensors.k_bias), 1, "k" + suffix);
  const ValueId v = linear(h, *tensors.v, bias(tensors.v_bias), 1, "v" + suffix);
  if (variant.has_qk_norm) {
    q = head_op(TD_OP_HEAD_NORM, q, vector_weight(*tensors.q_norm), config_.num_heads, "q_norm" + suffix);
    k = head_op(TD_OP_HEAD_NORM, k, vector_weight(*tensors.k_norm), config_.num_kv_heads, "k_norm" + suffix);
  }
  q = head_op(TD_OP_ROPE, q, rope_table_, config_.num_heads, "q_rope" + suffix);
  k = head_op(TD_OP_ROPE, k, rope_table_, config_.num_kv_heads, "k_rope" + suffix);

  OpAttributes attributes{.layer = layer};
  attributes.num_kv_heads = config_.num_kv_heads;
  attributes.head_dim = config_.head_dim;
  graph_.nodes.push_back({TD_OP_KV_WRITE, {k, v}, kNone, {}, attributes});
  attributes.num_heads = config_.num_heads;
  attributes.window = config_.sliding_window;
  attributes.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  Value context = graph_.values[q];
  context.name = "context" + suffix;
  const ValueId attended = graph_.add_node({TD_OP_ATTENTION, {q}, kNone, {}, attributes}, std::move(context));
  const uint32_t segments = num_segments(columns_of(*tensors.o), config_.num_heads);
  add_residual(linear(attended, *tensors.o, nullptr, segments, "o" + suffix), "x_attn" + suffix);
}

void DecoderBuilder::gated_ffn_block(uint32_t layer, const LayerTensors& tensors) {
  layer_ = layer;
  const std::string suffix = "." + std::to_string(layer);
  const ValueId h = norm(stream_, *tensors.ffn_norm, "ffn_in" + suffix);
  const ValueId gate = linear(h, *tensors.gate, nullptr, 1, "gate" + suffix);
  const ValueId up = linear(h, *tensors.up, nullptr, 1, "up" + suffix);
  Value product = graph_.values[gate];
  product.name = "gated" + suffix;
  const ValueId gated = graph_.add_node({TD_OP_SILU_MUL, {gate, up}, kNone, {}, {.layer = layer}}, std::move(product));
  const uint32_t segments = num_segments(columns_of(*tensors.down), 0);
  add_residual(linear(gated, *tensors.down, nullptr, segments, "down" + suffix), "x" + suffix);
}

void DecoderBuilder::finish_hidden() {
  TANDEM_CHECK(stream_ != kNone);
  graph_.values[stream_].name = "hidden";
  graph_.values[stream_].external_slot = kHiddenSlot;
}

ValueId DecoderBuilder::output_rows() {
  Value hidden;
  hidden.name = "hidden";
  hidden.columns = config_.hidden;
  hidden.external_slot = kHiddenSlot;
  const ValueId input = graph_.add_value(hidden);
  Value rows = hidden;
  rows.name = "rows";
  rows.rows = TD_ROWS_OUTPUTS;
  rows.external_slot = kNone;
  return graph_.add_node({TD_OP_GATHER_ROWS, {input}, kNone, {}, {}}, rows);
}

void DecoderBuilder::logits(const TensorEntry& norm_weight, const TensorEntry& lm_head) {
  const ValueId out = linear(norm(output_rows(), norm_weight, "head_in"), lm_head, nullptr, 1, "logits");
  graph_.values[out].external_slot = kLogitsSlot;
}

void DecoderBuilder::normed_rows(const TensorEntry& norm_weight) {
  graph_.values[norm(output_rows(), norm_weight, "normed")].external_slot = kNormedSlot;
}

}  // namespace tandem::model
