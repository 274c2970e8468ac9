#pragma once
// Memory plan: where in the arena each value lives, from liveness. Values of which no op needs both share bytes.
// Source: greedy placement by size, as in Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference"
// (2020), section 5.

#include <cstdint>
#include <functional>
#include <vector>

#include "compute/graph/graph.h"

namespace tandem::graph {

struct MemoryPlan {
  std::vector<uint64_t> offset_bytes;  // by value; of a view its base's; meaningless for externals and unused values
  uint64_t arena_bytes = 0;
};

struct RowCounts {
  uint32_t max_tokens = 0;
  uint32_t max_outputs = 0;
};

// Bytes of one row of a format, from the device.
using RowBytes = std::function<uint64_t(td_format format, uint32_t columns)>;

// With `reuse` false every value has bytes of its own (the pass plan_memory switched off).
MemoryPlan plan_memory(const Graph& graph, const RowCounts& rows, const RowBytes& row_bytes, bool reuse);

}  // namespace tandem::graph
