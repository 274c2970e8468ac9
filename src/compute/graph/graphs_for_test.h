#pragma once
// Graphs made by hand, for tests of passes and of the memory plan.

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compute/graph/graph.h"

namespace tandem::graph {

// Builds a graph a line at a time; values are named after their op unless told.
struct GraphMaker {
  Graph graph{};

  ValueId value(const std::string& name, uint32_t columns, td_format format = TD_F32) {
    Value made;
    made.name = name;
    made.columns = columns;
    made.format = format;
    return graph.add_value(std::move(made));
  }
  ValueId outside(const std::string& name, uint32_t columns, uint32_t slot) {
    const ValueId id = value(name, columns);
    graph.values[id].external_slot = slot;
    return id;
  }
  WeightId weight(const std::string& name, uint32_t n, uint32_t k, tensor::DType dtype, td_format activation) {
    Weight made;
    made.name = name;
    made.parts = {{name, dtype, n, {}}};
    made.n = n;
    made.k = k;
    made.activation = activation;
    return graph.add_weight(std::move(made));
  }
  WeightId vector(const std::string& name, uint32_t n) {
    const WeightId id = weight(name, n, 1, tensor::DType::kF32, TD_F32);
    graph.weights[id].use = TD_WEIGHT_VECTOR;
    return id;
  }
  ValueId op(td_op_kind kind, const std::string& name, std::vector<ValueId> in, uint32_t columns,
             std::vector<WeightId> weights = {}, td_format format = TD_F32) {
    Node node;
    node.op = kind;
    node.in = std::move(in);
    node.weights = std::move(weights);
    Value out;
    out.name = name;
    out.columns = columns;
    out.format = format;
    return graph.add_node(std::move(node), std::move(out));
  }
  ValueId linear(const std::string& name, ValueId in, uint32_t n, tensor::DType dtype = tensor::DType::kQ4_0) {
    const Value& x = graph.values[in];
    const WeightId matrix = weight("w_" + name, n, x.columns, dtype, x.format);
    return op(TD_OP_LINEAR, name, {in}, n, {matrix, kNone});
  }
  // An op that reads `in` and ends the graph outside.
  void sink(std::vector<ValueId> in, uint32_t slot = 1) {
    const uint32_t columns = graph.values[in[0]].columns;
    if (in.size() == 1) in.push_back(in[0]);
    graph.values[op(TD_OP_ADD, "end", std::move(in), columns)].external_slot = slot;
  }
};

// A graph of `num_nodes` adds, norms, quantisations and linears over values that are read at any later time, so that
// lifetimes of all lengths occur; all of it valid.
inline Graph random_graph(std::mt19937& random, uint32_t num_nodes) {
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  GraphMaker maker;
  std::vector<ValueId> plain = {maker.outside("in", 64, 0)};  // f32, 64 columns
  std::vector<ValueId> wide;                                  // f32, 160 columns
  for (uint32_t i = 0; i < num_nodes; ++i) {
    const std::string name = "v" + std::to_string(i);
    const ValueId x = plain[below(plain.size())];
    switch (below(6)) {
      case 0: plain.push_back(maker.op(TD_OP_ADD, name, {x, plain[below(plain.size())]}, 64)); break;
      case 1: plain.push_back(maker.op(TD_OP_RMS_NORM, name, {x}, 64, {maker.vector("n_" + name, 64)})); break;
      case 2: {
        const ValueId q8 = maker.op(TD_OP_QUANTIZE, name + ".q8", {x}, 64, {}, TD_Q8);
        plain.push_back(maker.linear(name, q8, 64));
        break;
      }
      case 3: {
        const ValueId gate = maker.linear(name + ".gate", x, 160);
        const ValueId up = maker.linear(name + ".up", x, 160);
        wide.push_back(maker.op(TD_OP_SILU_MUL, name, {gate, up}, 160));
        break;
      }
      case 4: {
        for (const char* part : {".q", ".k", ".v"}) plain.push_back(maker.linear(name + part, x, 64));
        break;
      }
      default:
        if (!wide.empty()) plain.push_back(maker.linear(name, wide[below(wide.size())], 64));
        break;
    }
  }
  // Everything has a reader: what none has yet goes into one sum.
  ValueId sum = plain[0];
  for (const std::vector<ValueId>& list : {plain, wide}) {
    for (ValueId value : list) {
      bool is_read = value == plain[0];
      for (const Node& node : maker.graph.nodes) {
        for (ValueId in : node.in) is_read |= in == value;
      }
      if (is_read) continue;
      const ValueId summand = maker.graph.values[value].columns == 64 ? value : maker.linear("down", value, 64);
      sum = maker.op(TD_OP_ADD, "sum" + std::to_string(value), {sum, summand}, 64);
    }
  }
  maker.sink({sum});
  return std::move(maker.graph);
}

}  // namespace tandem::graph
