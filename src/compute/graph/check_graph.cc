#include "compute/graph/check_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tandem::graph {
namespace {

struct Columns {
  uint32_t begin, end;
};

class GraphChecker {
 public:
  explicit GraphChecker(const Graph& graph)
      : graph_(graph), written_(graph.values.size()), is_written_(graph.values.size(), false) {
    for (const Node& node : graph.nodes) {
      if (node.out < graph.values.size()) is_written_[graph.base_of(node.out)] = true;
    }
  }

  Status check() {
    for (ValueId id = 0; id < graph_.values.size(); ++id) TRY(check_view(graph_.values[id]));
    for (index_ = 0; index_ < graph_.nodes.size(); ++index_) {
      const Node& node = graph_.nodes[index_];
      TRY(check_ids(node));
      for (ValueId value : node.in) TRY(check_read(value));
      TRY(check_shapes(node));
      TRY(check_kv(node));
      if (node.out != kNone) TRY(check_write(node));
    }
    return Done{};
  }

 private:
  Error fault(const std::string& what) const {
    return Error{ErrorCode::kInternal,
                 fmt::format("graph: node {} ({}): {}", index_, op_name(graph_.nodes[index_].op), what)};
  }

  Status check_view(const Value& value) const {
    if (value.base == kNone) return Done{};
    const auto wrong = [&](const char* what) {
      return Error{ErrorCode::kInternal, fmt::format("graph: view {}: {}", value.name, what)};
    };
    if (value.base >= graph_.values.size()) return wrong("no such base");
    const Value& base = graph_.values[value.base];
    if (base.base != kNone) return wrong("its base is a view");
    if (value.column_begin > base.columns || value.columns > base.columns - value.column_begin) {
      return wrong("reaches beyond its base");
    }
    if (value.rows != base.rows || value.format != base.format) return wrong("rows or format are not its base's");
    if (value.external_slot != kNone) return wrong("a view cannot live outside by itself");
    return Done{};
  }

  Status check_ids(const Node& node) const {
    if (node.in.size() > TD_MAX_OPERANDS || node.weights.size() > TD_MAX_OPERANDS) return fault("too many operands");
    const bool is_read = std::all_of(node.in.begin(), node.in.end(), [&](ValueId id) {
      return id < graph_.values.size();
    });
    if (!is_read) return fault("reads a value that does not exist");
    if (node.out != kNone && node.out >= graph_.values.size()) return fault("writes a value that does not exist");
    for (WeightId id : node.weights) {
      if (id != kNone && id >= graph_.weights.size()) return fault("uses a weight that does not exist");
    }
    return Done{};
  }

  Columns columns_of(ValueId id) const {
    const Value& value = graph_.values[id];
    const uint32_t begin = value.base == kNone ? 0 : value.column_begin;
    return {begin, begin + value.columns};
  }

  Status check_read(ValueId id) const {
    const ValueId base = graph_.base_of(id);
    if (!is_written_[base]) {
      if (graph_.values[base].external_slot != kNone) return Done{};
      return fault("reads " + graph_.values[id].name + ", which nothing writes");
    }
    const Columns wanted = columns_of(id);
    uint32_t reached = wanted.begin;
    for (const Columns& piece : written_[base]) {  // rising
      if (piece.begin <= reached) reached = std::max(reached, piece.end);
    }
    if (reached < wanted.end) return fault("reads " + graph_.values[id].name + " before it is written");
    return Done{};
  }

  bool is_read_later(ValueId id) const {
    const ValueId base = graph_.base_of(id);
    const Columns made = columns_of(id);
    for (size_t i = index_ + 1; i < graph_.nodes.size(); ++i) {
      for (ValueId in : graph_.nodes[i].in) {
        if (in >= graph_.values.size() || graph_.base_of(in) != base) continue;
        const Columns read = columns_of(in);
        if (read.begin < made.end && made.begin < read.end) return true;
      }
    }
    return false;
  }

  Status check_write(const Node& node) {
    const ValueId base = graph_.base_of(node.out);
    const Columns made = columns_of(node.out);
    const bool is_in_place = node.op == TD_OP_ROPE_KV_WRITE && node.in[0] == node.out;
    std::vector<Columns>& pieces = written_[base];
    if (!is_in_place) {
      for (const Columns& piece : pieces) {
        if (piece.begin < made.end && made.begin < piece.end) {
          return fault("writes " + graph_.values[node.out].name + " a second time");
        }
      }
      pieces.push_back(made);
      std::sort(pieces.begin(), pieces.end(), [](const Columns& a, const Columns& b) { return a.begin < b.begin; });
    }
    if (graph_.values[base].external_slot == kNone && !is_read_later(node.out)) {
      return fault("nothing reads " + graph_.values[node.out].name);
    }
    return Done{};
  }

  Status check_kv(const Node& node) {
    if (node.op == TD_OP_KV_WRITE || node.op == TD_OP_ROPE_KV_WRITE) {
      if (!kv_layers_.insert(node.attributes.layer).second) return fault("writes the KV of its layer a second time");
    }
    if (node.op == TD_OP_ATTENTION && kv_layers_.count(node.attributes.layer) == 0) {
      return fault("attends before the KV of its layer is written");
    }
    return Done{};
  }

  Status check_shapes(const Node& node) const {
    if (node.op == TD_OP_LINEAR) return check_linear(node);
    const bool is_square = node.op == TD_OP_RMS_NORM || node.op == TD_OP_QUANTIZE || node.op == TD_OP_HEAD_NORM ||
                           node.op == TD_OP_ROPE || node.op == TD_OP_ATTENTION || node.op == TD_OP_SILU_MUL ||
                           node.op == TD_OP_ADD || node.op == TD_OP_GATHER_ROWS || node.op == TD_OP_ROPE_KV_WRITE;
    if (!is_square) return Done{};
    const Value& out = graph_.values[node.out];
    if (node.in.empty() || graph_.values[node.in[0]].columns != out.columns) {
      return fault("input and output differ in columns");
    }
    if (node.op != TD_OP_GATHER_ROWS && graph_.values[node.in[0]].rows != out.rows) {
      return fault("input and output differ in rows");
    }
    return Done{};
  }

  Status check_linear(const Node& node) const {
    if (node.in.empty() || node.out == kNone || node.weights.empty() || node.weights[0] == kNone) {
      return fault("a linear needs an input, a weight and an output");
    }
    const Weight& weight = graph_.weights[node.weights[0]];
    const Value& in = graph_.values[node.in[0]];
    const Value& out = graph_.values[node.out];
    uint32_t rows = 0;
    for (const WeightPart& part : weight.parts) rows += part.num_rows;
    if (rows != weight.n) return fault("the parts of " + weight.name + " are not its rows");
    if (in.columns != weight.k || in.format != weight.activation) return fault("input and weight do not fit");
    if (node.attributes.gated != weight.interleave) return fault("a gated linear has interleaved weights");
    if (out.columns != (node.attributes.gated ? weight.n / 2 : weight.n)) return fault("output and weight do not fit");
    if (node.weights.size() > 1 && node.weights[1] != kNone && graph_.weights[node.weights[1]].n != weight.n) {
      return fault("bias and weight do not fit");
    }
    if (node.in.size() > 1 && graph_.values[node.in[1]].columns != out.columns) {
      return fault("the residual does not fit");
    }
    return Done{};
  }

  const Graph& graph_;
  std::vector<std::vector<Columns>> written_;  // by base value, so far, rising
  std::vector<bool> is_written_;               // by base value, by any node
  std::set<uint32_t> kv_layers_;               // written so far
  size_t index_ = 0;
};

}  // namespace

Status check_graph(const Graph& graph) { return GraphChecker(graph).check(); }

}  // namespace tandem::graph
