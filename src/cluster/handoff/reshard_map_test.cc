#include "cluster/handoff/reshard_map.h"

#include <doctest/doctest.h>

#include <map>
#include <utility>

namespace tandem::handoff {
namespace {

constexpr KvExtent kSmol{30, 3};

std::vector<Move> map_of(const KvExtent& kv, Parallelism source, Parallelism target) {
  auto moves = reshard_map(kv, source, target);
  REQUIRE(moves);
  return std::move(moves).value();
}

// Each rank of the target gets every (layer, head) it holds exactly once, from a rank that has it.
void check_covers(const KvExtent& kv, Parallelism source, Parallelism target) {
  std::map<std::pair<uint32_t, std::pair<uint32_t, uint32_t>>, uint32_t> count;
  for (const Move& move : map_of(kv, source, target)) {
    const RankSlice from = *slice_of(kv, source, move.source_rank);
    CHECK(from.layers.begin <= move.slice.layers.begin);
    CHECK(move.slice.layers.end <= from.layers.end);
    CHECK(from.heads.begin <= move.slice.heads.begin);
    CHECK(move.slice.heads.end <= from.heads.end);
    for (uint32_t l = move.slice.layers.begin; l < move.slice.layers.end; ++l) {
      for (uint32_t h = move.slice.heads.begin; h < move.slice.heads.end; ++h) ++count[{move.target_rank, {l, h}}];
    }
  }
  size_t num_wanted = 0;
  for (uint32_t rank = 0; rank < target.tp * target.pp; ++rank) {
    const RankSlice to = *slice_of(kv, target, rank);
    num_wanted += size_t{to.layers.size()} * to.heads.size();
    for (uint32_t l = to.layers.begin; l < to.layers.end; ++l) {
      for (uint32_t h = to.heads.begin; h < to.heads.end; ++h) CHECK(count[{rank, {l, h}}] == 1);
    }
  }
  CHECK(count.size() == num_wanted);
}

TEST_CASE("3 kv heads at tp 3 join at tp 1, and split again") {
  CHECK(map_of(kSmol, {3, 1}, {1, 1}) == std::vector<Move>{{0, 0, {{0, 30}, {0, 1}}},
                                                           {1, 0, {{0, 30}, {1, 2}}},
                                                           {2, 0, {{0, 30}, {2, 3}}}});
  CHECK(map_of(kSmol, {1, 1}, {3, 1}) == std::vector<Move>{{0, 0, {{0, 30}, {0, 1}}},
                                                           {0, 1, {{0, 30}, {1, 2}}},
                                                           {0, 2, {{0, 30}, {2, 3}}}});
}

TEST_CASE("16 to 4 and 4 to 16") {
  const KvExtent kv{32, 16};
  const auto joined = map_of(kv, {16, 1}, {4, 1});
  REQUIRE(joined.size() == 16);
  CHECK(joined[5] == Move{5, 1, {{0, 32}, {5, 6}}});
  const auto split = map_of(kv, {4, 1}, {16, 1});
  REQUIRE(split.size() == 16);
  CHECK(split[5] == Move{1, 5, {{0, 32}, {5, 6}}});
}

TEST_CASE("PAR-02, PDD-09: with fewer kv heads than ranks each head is sent once, by replicas in turn") {
  const KvExtent kv{32, 8};
  const auto joined = map_of(kv, {16, 1}, {4, 1});  // source ranks 2h and 2h + 1 both hold head h
  REQUIRE(joined.size() == 8);
  CHECK(joined[0] == Move{0, 0, {{0, 32}, {0, 1}}});
  CHECK(joined[1] == Move{2, 0, {{0, 32}, {1, 2}}});
  CHECK(joined[2] == Move{5, 1, {{0, 32}, {2, 3}}});  // target rank 1 takes the odd replicas
  const auto split = map_of(kv, {4, 1}, {16, 1});
  REQUIRE(split.size() == 16);
  CHECK(split[2] == Move{0, 2, {{0, 32}, {1, 2}}});
  CHECK(split[3] == Move{0, 3, {{0, 32}, {1, 2}}});
  CHECK(map_of({32, 2}, {1, 1}, {4, 1})[3] == Move{0, 3, {{0, 32}, {1, 2}}});  // 2 heads on 4 ranks
  CHECK(map_of({32, 1}, {2, 1}, {4, 1})[3] == Move{1, 3, {{0, 32}, {0, 1}}});
}

TEST_CASE("pipeline stages: the layers that do not divide go to the first") {
  CHECK(slice_of({10, 4}, {1, 3}, 0)->layers == Range{0, 4});
  CHECK(slice_of({10, 4}, {1, 3}, 1)->layers == Range{4, 7});
  CHECK(slice_of({10, 4}, {1, 3}, 2)->layers == Range{7, 10});
  CHECK(map_of({10, 4}, {1, 3}, {1, 2}) == std::vector<Move>{{0, 0, {{0, 4}, {0, 4}}},
                                                             {1, 0, {{4, 5}, {0, 4}}},
                                                             {1, 1, {{5, 7}, {0, 4}}},
                                                             {2, 1, {{7, 10}, {0, 4}}}});
}

TEST_CASE("PAR-03: every layer is in exactly one stage") {
  for (uint32_t layers = 1; layers <= 64; ++layers) {
    for (uint32_t pp = 1; pp <= 8 && pp <= layers; ++pp) {
      uint32_t next = 0;
      for (uint32_t stage = 0; stage < pp; ++stage) {
        const Range range = slice_of({layers, 1}, {1, pp}, stage)->layers;
        CHECK(range.begin == next);
        CHECK(range.size() >= 1);
        next = range.end;
      }
      CHECK(next == layers);
    }
  }
}

TEST_CASE("PDD-09: every pair of sizes covers each target rank exactly once") {
  const Parallelism sizes[] = {{1, 1}, {2, 1}, {4, 1}, {8, 1}, {16, 1}, {1, 2}, {4, 3}, {8, 2}, {2, 5}};
  for (const uint32_t heads : {1u, 2u, 4u, 8u, 16u}) {
    for (const Parallelism& source : sizes) {
      for (const Parallelism& target : sizes) check_covers({10, heads}, source, target);
    }
  }
}

TEST_CASE("PAR-01, PAR-03: sizes that cannot be are refused, and what would fit is named") {
  const auto two = reshard_map(kSmol, {2, 1}, {1, 1});
  REQUIRE(!two);
  CHECK(two.error().code == ErrorCode::kInvalidArgument);
  CHECK(two.error().message == "tp 2 does not fit 3 kv heads; it can be 1, 3, or a multiple of 3");
  CHECK(!reshard_map({32, 4}, {3, 1}, {1, 1}));
  CHECK(!reshard_map({32, 4}, {1, 1}, {6, 1}));
  CHECK(!reshard_map({4, 4}, {1, 5}, {1, 1}));
  CHECK(!reshard_map({4, 4}, {1, 0}, {1, 1}));
  CHECK(!slice_of({4, 4}, {2, 2}, 4));
}

}  // namespace
}  // namespace tandem::handoff
