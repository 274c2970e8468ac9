#pragma once
// A graph as text (one op a line, for people and golden files) and as Graphviz input.

#include <string>

#include "compute/graph/graph.h"

namespace tandem::graph {

std::string dump_text(const Graph& graph);
std::string dump_dot(const Graph& graph);

}  // namespace tandem::graph
