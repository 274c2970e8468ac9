#pragma once
// Plan: a graph made ready for a device: ops of the ABI with arena offsets. Frozen; owns its ops.

#include <cstdint>
#include <functional>
#include <vector>

#include "compute/graph/graph.h"
#include "compute/graph/memory_plan.h"

namespace tandem::graph {

struct Plan {
  std::vector<td_op> ops;
  uint64_t arena_bytes = 0;
};

Plan lower(const Graph& graph, const MemoryPlan& memory, const RowBytes& row_bytes);

// Bytes that the ops move per token at one output per token, weights counted once per step and apart.
struct GraphCost {
  uint32_t num_ops = 0;
  uint64_t activation_bytes_read = 0;     // per token, between ops
  uint64_t activation_bytes_written = 0;  // per token
  uint64_t weight_bytes = 0;              // per step: linears
  uint64_t kv_bytes_written = 0;          // per token
};
// Bytes that the device keeps a weight in.
using WeightBytes = std::function<uint64_t(const Weight& weight)>;
// `kv_layer_bytes`: what one token's keys and values of one layer take.
GraphCost cost_of(const Graph& graph, const RowBytes& row_bytes, const WeightBytes& weight_bytes,
                  uint64_t kv_layer_bytes);

}  // namespace tandem::graph
