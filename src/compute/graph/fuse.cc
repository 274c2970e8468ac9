#include "compute/graph/fuse.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::graph {
namespace {

constexpr size_t kNoNode = static_cast<size_t>(-1);

size_t num_uses(const Graph& graph, ValueId value) {
  size_t uses = 0;
  for (const Node& node : graph.nodes) uses += std::count(node.in.begin(), node.in.end(), value);
  return uses;
}

size_t producer_of(const Graph& graph, ValueId value) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].out == value) return i;
  }
  return kNoNode;
}

// A value whose only reader is the op it feeds may vanish in a fused one; what the caller reads may not.
bool has_one_reader(const Graph& graph, ValueId value) {
  return num_uses(graph, value) == 1 && graph.values[graph.base_of(value)].external_slot == kNone;
}

// Whether `value` is complete before node `reader` runs.
bool is_ready(const Graph& graph, ValueId value, size_t reader) {
  for (size_t i = reader; i < graph.nodes.size(); ++i) {
    const ValueId out = graph.nodes[i].out;
    if (out != kNone && graph.base_of(out) == graph.base_of(value)) return false;
  }
  return true;
}

void erase_nodes(Graph& graph, const std::vector<bool>& is_dead) {
  size_t kept = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (is_dead[i]) continue;
    if (kept != i) graph.nodes[kept] = std::move(graph.nodes[i]);
    ++kept;
  }
  graph.nodes.resize(kept);
}

bool has_one_type(const Weight& a, const Weight& b) {
  const tensor::DType dtype = a.parts.front().dtype;
  const auto same = [&](const WeightPart& part) { return part.dtype == dtype; };
  return a.k == b.k && a.segments == b.segments && a.activation == b.activation &&
         std::all_of(a.parts.begin(), a.parts.end(), same) && std::all_of(b.parts.begin(), b.parts.end(), same);
}

bool is_linear(const Node& node) { return node.op == TD_OP_LINEAR && node.in.size() == 1 && !node.attributes.gated; }

bool has_bias(const Node& node) { return node.weights.size() > 1 && node.weights[1] != kNone; }

// Appends the rows of `from` to `to`, weights and biases.
void stack_linear(Graph& graph, Node& to, const Node& from) {
  for (size_t i = 0; i < to.weights.size(); ++i) {
    if (to.weights[i] == kNone) continue;
    Weight& target = graph.weights[to.weights[i]];
    const Weight& source = graph.weights[from.weights[i]];
    target.parts.insert(target.parts.end(), source.parts.begin(), source.parts.end());
    target.name += "+" + source.name;
    target.n += source.n;
  }
}

// A view over `columns` of the base from `begin`; stands for two neighbouring views.
ValueId widen_view(Graph& graph, ValueId first, ValueId second) {
  Value view = graph.values[first];
  view.columns += graph.values[second].columns;
  view.name += "+" + graph.values[second].name;
  return graph.add_value(std::move(view));
}

}  // namespace

void fuse_qkv(Graph& graph) {
  std::vector<bool> is_dead(graph.nodes.size(), false);
  for (size_t i = 0; i + 2 < graph.nodes.size(); ++i) {
    const auto fits = [&](const Node& node) {
      return is_linear(node) && node.in == graph.nodes[i].in && graph.values[node.out].external_slot == kNone &&
             graph.values[node.out].base == kNone;
    };
    if (!fits(graph.nodes[i]) || !fits(graph.nodes[i + 1]) || !fits(graph.nodes[i + 2])) continue;
    Value base = graph.values[graph.nodes[i].out];
    base.name = "qkv." + std::to_string(graph.nodes[i].attributes.layer);
    base.columns = 0;
    const ValueId base_id = graph.add_value(base);
    for (size_t j = i; j < i + 3; ++j) {
      Value& view = graph.values[graph.nodes[j].out];
      view.base = base_id;
      view.column_begin = graph.values[base_id].columns;
      graph.values[base_id].columns += view.columns;
    }
    size_t into = i;
    for (size_t j = i + 1; j < i + 3; ++j) {
      Node& first = graph.nodes[into];
      const Node& next = graph.nodes[j];
      if (has_bias(first) == has_bias(next) &&
          has_one_type(graph.weights[first.weights[0]], graph.weights[next.weights[0]])) {
        stack_linear(graph, first, next);
        first.out = widen_view(graph, first.out, next.out);
        is_dead[j] = true;
      } else {
        into = j;
      }
    }
    i += 2;
  }
  erase_nodes(graph, is_dead);
}

void fuse_gate_up(Graph& graph) {
  std::vector<bool> is_dead(graph.nodes.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op != TD_OP_SILU_MUL) continue;
    const size_t gate = producer_of(graph, graph.nodes[i].in[0]);
    const size_t up = producer_of(graph, graph.nodes[i].in[1]);
    if (gate == kNoNode || up == kNoNode) continue;
    Node& gate_node = graph.nodes[gate];
    const Node& up_node = graph.nodes[up];
    const bool fits = is_linear(gate_node) && is_linear(up_node) && gate_node.in == up_node.in &&
                      !has_bias(gate_node) && !has_bias(up_node) && graph.values[gate_node.out].columns % 32 == 0 &&
                      has_one_type(graph.weights[gate_node.weights[0]], graph.weights[up_node.weights[0]]) &&
                      has_one_reader(graph, gate_node.out) && has_one_reader(graph, up_node.out);
    if (!fits) continue;
    stack_linear(graph, gate_node, up_node);
    graph.weights[gate_node.weights[0]].interleave = true;
    gate_node.attributes.gated = true;
    gate_node.out = graph.nodes[i].out;
    is_dead[up] = is_dead[i] = true;
  }
  erase_nodes(graph, is_dead);
}

void fuse_residual(Graph& graph) {
  std::vector<bool> is_dead(graph.nodes.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op != TD_OP_ADD) continue;
    const ValueId residual = graph.nodes[i].in[0];
    const size_t linear = producer_of(graph, graph.nodes[i].in[1]);
    const bool fits = linear != kNoNode && is_linear(graph.nodes[linear]) &&
                      has_one_reader(graph, graph.nodes[i].in[1]) && is_ready(graph, residual, linear);
    if (!fits) continue;
    graph.nodes[linear].in.push_back(residual);
    graph.nodes[linear].out = graph.nodes[i].out;
    is_dead[i] = true;
  }
  erase_nodes(graph, is_dead);
}

void fuse_quantize(Graph& graph) {
  std::vector<bool> is_dead(graph.nodes.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op != TD_OP_QUANTIZE) continue;
    const ValueId plain = graph.nodes[i].in[0];
    const size_t maker = producer_of(graph, plain);
    if (maker == kNoNode || !has_one_reader(graph, plain) || graph.values[plain].base != kNone) continue;
    Node& node = graph.nodes[maker];
    // Attention and linear store pieces of a row, which must be whole blocks of 32 columns.
    const bool can = node.op == TD_OP_RMS_NORM ||
                     (node.op == TD_OP_ATTENTION && node.attributes.head_dim % 32 == 0) ||
                     (node.op == TD_OP_LINEAR && graph.values[plain].columns % 32 == 0);
    if (!can) continue;
    node.out = graph.nodes[i].out;
    is_dead[i] = true;
  }
  erase_nodes(graph, is_dead);
}

void fuse_rope_kv(Graph& graph) {
  std::vector<bool> is_dead(graph.nodes.size(), false);
  for (size_t i = 2; i < graph.nodes.size(); ++i) {
    const size_t k_rope = i - 1, q_rope = i - 2;
    const bool fits = graph.nodes[i].op == TD_OP_KV_WRITE && graph.nodes[k_rope].op == TD_OP_ROPE &&
                      graph.nodes[q_rope].op == TD_OP_ROPE && graph.nodes[i].in[0] == graph.nodes[k_rope].out &&
                      has_one_reader(graph, graph.nodes[k_rope].out) &&
                      has_one_reader(graph, graph.nodes[q_rope].in[0]);
    if (!fits) continue;
    Node fused = graph.nodes[i];
    fused.op = TD_OP_ROPE_KV_WRITE;
    fused.attributes = graph.nodes[q_rope].attributes;
    fused.attributes.num_kv_heads = graph.nodes[k_rope].attributes.num_heads;
    fused.weights = {graph.nodes[q_rope].weights[0], kNone, kNone};
    ValueId q = graph.nodes[q_rope].in[0];
    ValueId k = graph.nodes[k_rope].in[0];
    const size_t q_norm = producer_of(graph, q);
    const size_t k_norm = producer_of(graph, k);
    const auto can_vanish = [&](size_t norm, ValueId normed) {
      return norm != kNoNode && graph.nodes[norm].op == TD_OP_HEAD_NORM && has_one_reader(graph, normed);
    };
    if (can_vanish(q_norm, q) && can_vanish(k_norm, k) && has_one_reader(graph, graph.nodes[q_norm].in[0]) &&
        graph.nodes[q_norm].attributes.eps == graph.nodes[k_norm].attributes.eps) {
      fused.weights[1] = graph.nodes[q_norm].weights[0];
      fused.weights[2] = graph.nodes[k_norm].weights[0];
      fused.attributes.eps = graph.nodes[q_norm].attributes.eps;
      q = graph.nodes[q_norm].in[0];
      k = graph.nodes[k_norm].in[0];
      is_dead[q_norm] = is_dead[k_norm] = true;
    }
    fused.in = {q, k, graph.nodes[i].in[1]};
    // The rotated queries take the place of the plain ones, which nothing else reads.
    const ValueId rotated = graph.nodes[q_rope].out;
    for (Node& node : graph.nodes) std::replace(node.in.begin(), node.in.end(), rotated, q);
    fused.out = q;
    graph.nodes[i] = std::move(fused);
    is_dead[q_rope] = is_dead[k_rope] = true;
  }
  erase_nodes(graph, is_dead);
}

}  // namespace tandem::graph
