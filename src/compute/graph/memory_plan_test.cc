#include "compute/graph/memory_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "compute/graph/graphs_for_test.h"
#include "compute/graph/passes.h"
#include "compute/graph/plan.h"

namespace tandem::graph {
namespace {

uint64_t bytes_of_row(td_format format, uint32_t columns) {
  return format == TD_Q8 ? (columns + columns / 4 + 63) / 64 * 64 : uint64_t{columns} * (format == TD_BF16 ? 2 : 4);
}

constexpr RowCounts kRows{7, 3};

struct Placed {
  ValueId value;
  uint64_t begin, end;
};

// Where each base value in the arena lies, by the plan.
std::vector<Placed> placed_values(const Graph& graph, const MemoryPlan& plan) {
  std::vector<Placed> placed;
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.base != kNone || value.external_slot != kNone) continue;
    const bool is_used = std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      const auto is_id = [&](ValueId in) { return graph.base_of(in) == id; };
      return std::any_of(node.in.begin(), node.in.end(), is_id) || (node.out != kNone && graph.base_of(node.out) == id);
    });
    if (!is_used) continue;
    const uint64_t rows = value.rows == TD_ROWS_TOKENS ? kRows.max_tokens : kRows.max_outputs;
    const uint64_t begin = plan.offset_bytes[id];
    placed.push_back({id, begin, begin + rows * bytes_of_row(value.format, value.columns)});
  }
  return placed;
}

bool overlap(const Placed& a, const Placed& b) { return a.begin < b.end && b.begin < a.end; }

// Runs the graph on an arena whose bytes remember their owner: a value is whole when an op reads it only if no other
// value was written over it since. Independent of how the plan finds lifetimes.
bool keeps_values(const Graph& graph, const MemoryPlan& plan) {
  std::vector<ValueId> owner(plan.arena_bytes, kNone);
  const std::vector<Placed> all = placed_values(graph, plan);
  const auto place_of = [&](ValueId value) {
    const ValueId base = graph.base_of(value);
    return std::find_if(all.begin(), all.end(), [&](const Placed& placed) { return placed.value == base; });
  };
  for (const Node& node : graph.nodes) {
    // The output's bytes must not be an input's: an op may write before it has read everything.
    if (node.out != kNone && place_of(node.out) != all.end()) {
      const Placed& out = *place_of(node.out);
      for (uint64_t i = out.begin; i < out.end; ++i) owner[i] = out.value;
    }
    for (ValueId in : node.in) {
      if (place_of(in) == all.end()) continue;
      const Placed& read = *place_of(in);
      for (uint64_t i = read.begin; i < read.end; ++i) {
        if (owner[i] != read.value) return false;
      }
    }
  }
  return true;
}

TEST_CASE("in random graphs no value is written over while an op still needs it, before and after the passes") {
  std::mt19937 random(11);
  uint64_t reused = 0, apart = 0;
  for (int round = 0; round < 80; ++round) {
    CAPTURE(round);
    Graph graph = random_graph(random, 3 + round % 15);
    for (const bool is_fused : {false, true}) {
      if (is_fused) run_passes(graph, *parse_passes("all"));
      const MemoryPlan plan = plan_memory(graph, kRows, bytes_of_row, true);
      const MemoryPlan disjoint = plan_memory(graph, kRows, bytes_of_row, false);
      CHECK(keeps_values(graph, plan));
      uint64_t sum = 0;
      const std::vector<Placed> lone = placed_values(graph, disjoint);
      for (size_t i = 0; i < lone.size(); ++i) {
        sum += (lone[i].end - lone[i].begin + 63) / 64 * 64;
        CHECK(lone[i].end <= disjoint.arena_bytes);
        for (size_t j = 0; j < i; ++j) CHECK(!overlap(lone[i], lone[j]));
      }
      CHECK(disjoint.arena_bytes == sum);
      CHECK(plan.arena_bytes <= sum);
      for (const Placed& placed : placed_values(graph, plan)) {
        CHECK(placed.end <= plan.arena_bytes);
        CHECK(placed.begin % 64 == 0);
      }
      for (ValueId id = 0; id < graph.values.size(); ++id) {
        CHECK(plan.offset_bytes[id] == plan.offset_bytes[graph.base_of(id)]);
      }
      reused += plan.arena_bytes, apart += sum;
    }
  }
  CHECK(reused < apart * 3 / 4);  // else the plan shares nothing
}

TEST_CASE("a chain needs two places however long it is, and values outside need none") {
  GraphMaker m;
  ValueId x = m.outside("in", 64, 0);
  for (int i = 0; i < 20; ++i) x = m.linear("v" + std::to_string(i), x, 64);
  m.graph.values[x].external_slot = 1;
  const MemoryPlan plan = plan_memory(m.graph, kRows, bytes_of_row, true);
  CHECK(plan.arena_bytes == 2 * 7 * 256);
  CHECK(plan.offset_bytes.size() == m.graph.values.size());
}

TEST_CASE("lowered ops name the arena, the slots and the columns of views") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId q = m.linear("q", x, 64), k = m.linear("k", x, 32), v = m.linear("v", x, 32);
  m.sink({q}, 1), m.sink({k, v}, 2);
  run_passes(m.graph, *parse_passes("fuse_qkv"));
  const MemoryPlan memory = plan_memory(m.graph, kRows, bytes_of_row, true);
  const Plan plan = lower(m.graph, memory, bytes_of_row);
  REQUIRE(plan.ops.size() == 3);
  CHECK(plan.arena_bytes == memory.arena_bytes);
  const td_op& linear = plan.ops[0];
  CHECK(linear.in[0].space == TD_EXTERNAL);
  CHECK(linear.in[0].slot == 0);
  CHECK(linear.in[1].space == TD_NONE);
  CHECK(linear.out[0].space == TD_ARENA);
  CHECK(linear.out[0].columns == 128);
  CHECK(linear.weight[0] != TD_NO_WEIGHT);
  CHECK(linear.weight[1] == TD_NO_WEIGHT);
  const td_operand& value = plan.ops[2].in[1];
  CHECK(value.column_begin == 96);
  CHECK(value.columns == 32);
  CHECK(value.columns_total == 128);
  CHECK(value.row_bytes == 512);
  CHECK(value.offset == linear.out[0].offset);
  CHECK(plan.ops[2].out[0].slot == 2);
}

TEST_CASE("the cost counts what ops read and write per token, weights as the device keeps them, and KV") {
  GraphMaker m;
  const ValueId x = m.outside("x", 64, 0);
  const ValueId k = m.linear("k", x, 32), v = m.linear("v", x, 32);
  m.graph.nodes.push_back({TD_OP_KV_WRITE, {k, v}, kNone, {}, {}});
  const GraphCost cost = cost_of(m.graph, bytes_of_row, [](const Weight& weight) { return uint64_t{3} * weight.n; },
                                 136);
  CHECK(cost.num_ops == 3);
  CHECK(cost.activation_bytes_read == 2 * 256 + 2 * 128);
  CHECK(cost.activation_bytes_written == 2 * 128);
  CHECK(cost.weight_bytes == 3 * 32 + 3 * 32);
  CHECK(cost.kv_bytes_written == 136);
}

}  // namespace
}  // namespace tandem::graph
