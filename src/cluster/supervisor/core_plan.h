#pragma once
// core_plan: which cores each node of one machine gets.

#include <cstdint>
#include <vector>

namespace tandem::supervisor {

struct NodeCores {
  std::vector<int> cores;    // empty: not pinned
  uint32_t num_threads = 1;  // of its compute team
};

// Shares out the `cores` that this process may use. With `num_threads` = 0 each node gets as many as there are for it,
// at least one. Nodes are pinned, each to cores of its own that neighbour each other, only when there are enough for
// all of them: two teams that share a core wait for each other in every step.
std::vector<NodeCores> core_plan(const std::vector<int>& cores, uint32_t num_nodes, uint32_t num_threads);

}  // namespace tandem::supervisor
