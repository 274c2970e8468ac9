#include "cluster/handoff/reshard_map.h"

#include <algorithm>
#include <string>

namespace tandem::handoff {
namespace {

Status check(const KvExtent& kv, const Parallelism& p) {
  if (p.tp == 0 || p.pp == 0 || kv.num_kv_heads == 0 || kv.num_layers == 0) {
    return Error{ErrorCode::kInvalidArgument, "a size of the parallelism or of the model is 0"};
  }
  if (kv.num_kv_heads % p.tp != 0 && p.tp % kv.num_kv_heads != 0) {
    std::string sizes;
    for (uint32_t tp = 1; tp <= kv.num_kv_heads; ++tp) {
      if (kv.num_kv_heads % tp == 0) sizes += std::to_string(tp) + ", ";
    }
    return Error{ErrorCode::kInvalidArgument, "tp " + std::to_string(p.tp) + " does not fit " +
                                                  std::to_string(kv.num_kv_heads) + " kv heads; it can be " + sizes +
                                                  "or a multiple of " + std::to_string(kv.num_kv_heads)};
  }
  if (p.pp > kv.num_layers) {
    return Error{ErrorCode::kInvalidArgument, "pp " + std::to_string(p.pp) + " is more than the " +
                                                  std::to_string(kv.num_layers) + " layers"};
  }
  return Done{};
}

RankSlice slice_at(const KvExtent& kv, const Parallelism& p, uint32_t rank) {
  const uint32_t stage = rank / p.tp;
  const uint32_t tp_rank = rank % p.tp;
  const uint32_t each = kv.num_layers / p.pp;
  const uint32_t extra = kv.num_layers % p.pp;
  const uint32_t begin = stage * each + std::min(stage, extra);
  const Range layers{begin, begin + each + (stage < extra ? 1 : 0)};
  if (p.tp <= kv.num_kv_heads) {
    const uint32_t heads = kv.num_kv_heads / p.tp;
    return {layers, {tp_rank * heads, (tp_rank + 1) * heads}};
  }
  const uint32_t replicas = p.tp / kv.num_kv_heads;
  return {layers, {tp_rank / replicas, tp_rank / replicas + 1}};
}

Range overlap(const Range& a, const Range& b) {
  const uint32_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

Result<RankSlice> slice_of(const KvExtent& kv, const Parallelism& parallelism, uint32_t rank) {
  TRY(check(kv, parallelism));
  if (rank >= parallelism.tp * parallelism.pp) return Error{ErrorCode::kInvalidArgument, "no such rank"};
  return slice_at(kv, parallelism, rank);
}

Result<std::vector<Move>> reshard_map(const KvExtent& kv, const Parallelism& source, const Parallelism& target) {
  TRY(check(kv, source));
  TRY(check(kv, target));
  const uint32_t replicas = std::max(1u, source.tp / kv.num_kv_heads);  // of each head, neighbours in rank
  std::vector<Move> moves;
  for (uint32_t t = 0; t < target.tp * target.pp; ++t) {
    const RankSlice wanted = slice_at(kv, target, t);
    for (uint32_t s = 0; s < source.tp * source.pp; ++s) {
      if (s % replicas != t % replicas) continue;
      const RankSlice offered = slice_at(kv, source, s);
      const RankSlice common{overlap(wanted.layers, offered.layers), overlap(wanted.heads, offered.heads)};
      if (common.layers.size() > 0 && common.heads.size() > 0) moves.push_back({s, t, common});
    }
  }
  return moves;
}

}  // namespace tandem::handoff
