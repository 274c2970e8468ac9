#pragma once
// The fusing passes. Each leaves the graph valid whether or not the others run.

#include "compute/graph/graph.h"

namespace tandem::graph {

// q, k, v become views of one value; neighbouring linears of one input whose weights have one type become one linear
// over the stacked rows. Linears of other types write their slice (mixed quantisation keeps v at more bits).
void fuse_qkv(Graph& graph);

// gate, up and silu_mul become one gated linear over interleaved panels, when both weights have one type.
void fuse_gate_up(Graph& graph);

// linear then add: the linear takes the other summand as residual.
void fuse_residual(Graph& graph);

// rms_norm, gated linear or attention, then quantize: the first op writes the quantised form itself.
void fuse_quantize(Graph& graph);

// [head_norm q, k], rope q, k, kv_write: one op, queries rotated in place.
void fuse_rope_kv(Graph& graph);

}  // namespace tandem::graph
