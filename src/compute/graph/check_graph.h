#pragma once
// What every graph must satisfy, before and after any pass.

#include "base/result.h"
#include "compute/graph/graph.h"

namespace tandem::graph {

// kInternal names the first node that breaks a rule: what an op reads was written before it or comes from outside;
// nothing is written twice (but queries rotated in place) or never read; views lie inside their base; shapes,
// formats and weights fit; attention comes after the KV write of its layer.
Status check_graph(const Graph& graph);

}  // namespace tandem::graph
