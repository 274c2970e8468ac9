#include "cluster/supervisor/core_plan.h"

#include <algorithm>

namespace tandem::supervisor {

std::vector<NodeCores> core_plan(const std::vector<int>& cores, uint32_t num_nodes, uint32_t num_threads) {
  const auto num_cores = static_cast<uint32_t>(cores.size());
  std::vector<NodeCores> plan(num_nodes);
  if (num_nodes == 0) return plan;
  if (num_threads == 0) num_threads = std::max(num_cores / num_nodes, 1u);
  const bool is_pinned = uint64_t{num_threads} * num_nodes <= num_cores;
  auto next = cores.begin();
  for (NodeCores& node : plan) {
    node.num_threads = num_threads;
    if (!is_pinned) continue;
    node.cores.assign(next, next + num_threads);
    next += num_threads;
  }
  return plan;
}

}  // namespace tandem::supervisor
