#include "compute/graph/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace tandem::graph {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr size_t kNever = static_cast<size_t>(-1);

struct Interval {
  ValueId value;
  uint64_t size_bytes;
  size_t first, last;  // nodes, both included
  uint64_t offset_bytes = 0;
};

bool overlap_in_time(const Interval& a, const Interval& b) { return a.first <= b.last && b.first <= a.last; }

// First and last node that touches each base value.
std::vector<Interval> live_intervals(const Graph& graph, const RowCounts& rows, const RowBytes& row_bytes) {
  std::vector<size_t> first(graph.values.size(), kNever), last(graph.values.size(), 0);
  const auto touch = [&](ValueId value, size_t node) {
    const ValueId base = graph.base_of(value);
    first[base] = std::min(first[base], node);
    last[base] = std::max(last[base], node);
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId value : graph.nodes[i].in) touch(value, i);
    if (graph.nodes[i].out != kNone) touch(graph.nodes[i].out, i);
  }
  std::vector<Interval> intervals;
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.base != kNone || value.external_slot != kNone || first[id] == kNever) continue;
    const uint64_t num_rows = value.rows == TD_ROWS_TOKENS ? rows.max_tokens : rows.max_outputs;
    const uint64_t size = num_rows * row_bytes(value.format, value.columns);
    intervals.push_back({id, (size + kAlignment - 1) / kAlignment * kAlignment, first[id], last[id]});
  }
  return intervals;
}

// The lowest gap among the placed intervals that live at the same time.
uint64_t lowest_gap(const std::vector<Interval>& placed, const Interval& wanted) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (const Interval& other : placed) {
    if (overlap_in_time(other, wanted)) taken.emplace_back(other.offset_bytes, other.offset_bytes + other.size_bytes);
  }
  std::sort(taken.begin(), taken.end());
  uint64_t offset = 0;
  for (const auto& [begin, end] : taken) {
    if (begin >= offset + wanted.size_bytes) break;
    offset = std::max(offset, end);
  }
  return offset;
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const RowCounts& rows, const RowBytes& row_bytes, bool reuse) {
  std::vector<Interval> intervals = live_intervals(graph, rows, row_bytes);
  if (!reuse) {
    for (Interval& interval : intervals) interval.first = 0, interval.last = graph.nodes.size();
  }
  std::stable_sort(intervals.begin(), intervals.end(),
                   [](const Interval& a, const Interval& b) { return a.size_bytes > b.size_bytes; });
  MemoryPlan plan;
  plan.offset_bytes.assign(graph.values.size(), 0);
  std::vector<Interval> placed;
  for (Interval& interval : intervals) {
    interval.offset_bytes = lowest_gap(placed, interval);
    placed.push_back(interval);
    plan.offset_bytes[interval.value] = interval.offset_bytes;
    plan.arena_bytes = std::max(plan.arena_bytes, interval.offset_bytes + interval.size_bytes);
  }
  for (ValueId id = 0; id < graph.values.size(); ++id) plan.offset_bytes[id] = plan.offset_bytes[graph.base_of(id)];
  return plan;
}

}  // namespace tandem::graph
