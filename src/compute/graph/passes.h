#pragma once
// Passes: Graph to Graph, each with a name, a dump before and after in the tests, and a switch. None changes a bit of
// the results: a fused op rounds where the single ops do (docs/numerics.md).

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "compute/graph/graph.h"

namespace tandem::graph {

struct Pass {
  const char* name;
  const char* help;
  void (*run)(Graph& graph);
};

// In the order in which they run. Names starting with "fuse_" form the group "fuse". The memory plan (memory_plan.h)
// is the last step; its switch is the name "plan_memory".
std::span<const Pass> all_passes();

// The choice behind `--passes`: "all", "none", or a list of names and "fuse", separated by commas.
struct PassChoice {
  std::vector<std::string> names;  // in running order, of all_passes() and "plan_memory"
  bool has(std::string_view name) const;
};
Result<PassChoice> parse_passes(std::string_view text);

void run_passes(Graph& graph, const PassChoice& choice);

}  // namespace tandem::graph
