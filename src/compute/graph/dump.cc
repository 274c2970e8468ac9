#include "compute/graph/dump.h"

#include <fmt/format.h>

#include <map>

namespace tandem::graph {
namespace {

std::string value_text(const Graph& graph, ValueId id) {
  const Value& value = graph.values[id];
  std::string text = fmt::format("%{}", value.name);
  if (value.base != kNone) {
    text += fmt::format("@{}[{}:{}]", graph.values[value.base].name, value.column_begin,
                        value.column_begin + value.columns);
  }
  return text;
}

std::string weight_text(const Graph& graph, WeightId id) {
  const Weight& weight = graph.weights[id];
  std::string types;
  for (const WeightPart& part : weight.parts) {
    const std::string type = tensor::dtype_name(part.dtype);
    if (types.empty()) types = type;
    else if (types != type) types += "+" + type;
  }
  std::string text = fmt::format("{}:{}[{}x{}]", weight.name, types, weight.n, weight.k);
  if (weight.segments > 1) text += fmt::format("/seg{}", weight.segments);
  if (weight.interleave) text += "/interleaved";
  return text;
}

std::string attribute_text(const Node& node) {
  const OpAttributes& a = node.attributes;
  std::string text;
  if (a.gated) text += " gated";
  if (a.num_heads > 0) text += fmt::format(" heads={}", a.num_heads);
  if (a.num_kv_heads > 0) text += fmt::format(" kv_heads={}", a.num_kv_heads);
  if (a.head_dim > 0) text += fmt::format(" head_dim={}", a.head_dim);
  if (a.rotary_dim > 0) text += a.rope_interleaved ? " pairs=adjacent" : " pairs=halves";
  if (a.window > 0) text += fmt::format(" window={}", a.window);
  if (a.eps > 0) text += fmt::format(" eps={}", a.eps);
  if (a.scale > 0) text += fmt::format(" scale={}", a.scale);
  return text;
}

}  // namespace

std::string dump_text(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes) {
    if (node.out != kNone) {
      const Value& out = graph.values[node.out];
      text += fmt::format("{}: {}[{},{}] = ", value_text(graph, node.out), format_name(out.format),
                          out.rows == TD_ROWS_TOKENS ? "tokens" : "outputs", out.columns);
    }
    text += op_name(node.op);
    for (ValueId id : node.in) text += " " + value_text(graph, id);
    for (WeightId id : node.weights) {
      if (id != kNone) text += " " + weight_text(graph, id);
    }
    text += attribute_text(node);
    text += '\n';
  }
  return text;
}

std::string dump_dot(const Graph& graph) {
  std::string text = "digraph graph_of_ops {\n  node [shape=box, fontname=monospace];\n";
  std::map<ValueId, size_t> writer;  // by base value: the last node that wrote it
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    std::string label = op_name(node.op);
    if (!node.weights.empty() && node.weights[0] != kNone) label += "\\n" + weight_text(graph, node.weights[0]);
    text += fmt::format("  n{} [label=\"{}\"];\n", i, label);
    for (ValueId id : node.in) {
      const auto from = writer.find(graph.base_of(id));
      if (from == writer.end()) continue;
      text += fmt::format("  n{} -> n{} [label=\"{} {}\"];\n", from->second, i, graph.values[id].name,
                          format_name(graph.values[id].format));
    }
    if (node.out != kNone) writer[graph.base_of(node.out)] = i;
  }
  return text + "}\n";
}

}  // namespace tandem::graph
