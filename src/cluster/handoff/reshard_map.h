#pragma once
// Which slice of KV goes from which source rank to which target rank when the two sides differ in tensor and pipeline
// parallelism. Computed from the model's total kv heads: with TP above them each head lives on several ranks, and a map
// made of heads-per-rank would divide by zero or repeat the wrong one.

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace tandem::handoff {

struct KvExtent {
  uint32_t num_layers = 0, num_kv_heads = 0;  // of the whole model
};
struct Parallelism {
  uint32_t tp = 1, pp = 1;  // rank = stage * tp + tp_rank
};

struct Range {
  uint32_t begin = 0, end = 0;
  uint32_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// What one rank holds: layers of its stage, and its heads.
struct RankSlice {
  Range layers, heads;
  bool operator==(const RankSlice&) const = default;
};

// kInvalidArgument names the sizes that would work: TP that divides the kv heads or is a multiple of them, PP up to the
// number of layers. Layers that do not divide go one each to the first stages.
Result<RankSlice> slice_of(const KvExtent& kv, const Parallelism& parallelism, uint32_t rank);

struct Move {
  uint32_t source_rank = 0, target_rank = 0;
  RankSlice slice;
  bool operator==(const Move&) const = default;
};

// Every (layer, head) that a target rank holds, exactly once. Of source ranks with equal heads the one sends whose turn
// it is, so that replicas share the work. Ordered by target rank, then layers, then heads.
Result<std::vector<Move>> reshard_map(const KvExtent& kv, const Parallelism& source, const Parallelism& target);

}  // namespace tandem::handoff
