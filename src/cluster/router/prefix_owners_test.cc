#include "cluster/router/prefix_owners.h"

#include <doctest/doctest.h>

#include <numeric>

namespace tandem::router {
namespace {

std::vector<TokenId> prompt_of(size_t num_tokens) {
  std::vector<TokenId> prompt(num_tokens);
  std::iota(prompt.begin(), prompt.end(), 1);
  return prompt;
}

TEST_CASE("router blocks: full ones only, each of all before it, apart by salt") {
  std::vector<TokenId> prompt = prompt_of(1600);
  const std::vector<uint64_t> blocks = router_blocks(prompt, "");
  CHECK(blocks.size() == 3);
  CHECK(router_blocks(std::span(prompt).first(511), "").empty());
  CHECK(router_blocks(std::span(prompt).first(1024), "") == std::vector(blocks.begin(), blocks.begin() + 2));
  const std::vector<uint64_t> salted = router_blocks(prompt, "a");
  for (size_t b = 0; b < 3; ++b) CHECK(salted[b] != blocks[b]);
  prompt[600] = 0;
  const std::vector<uint64_t> changed = router_blocks(prompt, "");
  CHECK(changed[0] == blocks[0]);
  CHECK(changed[1] != blocks[1]);
  CHECK(changed[2] != blocks[2]);  // though its own tokens are the same
}

TEST_CASE("owners are found with the length they hold without a gap") {
  PrefixOwners prefixes(1024, 100);
  const std::vector<uint64_t> blocks = router_blocks(prompt_of(2048), "");
  prefixes.note_placed(std::span(blocks).first(2), 5);
  prefixes.note_placed(blocks, 9);
  prefixes.note_placed(std::span(blocks).subspan(3), 7);  // the end alone is of no use
  const PrefixOwners::Found found = prefixes.find(blocks);
  REQUIRE(found.count == 2);
  CHECK(found.owners[0].node == 5);
  CHECK(found.owners[0].num_blocks == 2);
  CHECK(found.owners[1].node == 9);
  CHECK(found.owners[1].num_blocks == 4);
  CHECK(prefixes.find(router_blocks(prompt_of(2048), "other")).count == 0);
  prefixes.forget(9);
  CHECK(prefixes.find(blocks).count == 1);
  prefixes.note_placed(blocks, 9);
  CHECK(prefixes.find(blocks).count == 2);
}

TEST_CASE("owners age by placements; using one keeps it") {
  PrefixOwners prefixes(1024, 10);
  const std::vector<uint64_t> old{1}, used{2}, other{3};
  prefixes.note_placed(old, 1);
  for (int i = 0; i < 5; ++i) {
    prefixes.note_placed(used, 2);
    prefixes.note_placed(other, 3);
  }
  CHECK(prefixes.find(old).count == 1);  // ten placements ago
  prefixes.note_placed(other, 3);
  CHECK(prefixes.find(old).count == 0);
  CHECK(prefixes.find(used).count == 1);
}

TEST_CASE("the owner used longest ago makes room for the next") {
  PrefixOwners prefixes(8, 100);
  const std::vector<uint64_t> block{42};
  for (const NodeIndex node : {1, 2, 3, 4, 1, 5}) prefixes.note_placed(block, node);
  const PrefixOwners::Found found = prefixes.find(block);
  CHECK(found.count == 4);
  for (const PrefixOwner& owner : found.owners) CHECK(owner.node != 2);
}

TEST_CASE("memory is bounded: old blocks make room, the newest is there") {
  PrefixOwners prefixes(100, UINT64_MAX);
  CHECK(prefixes.capacity() == 128);
  for (TokenId i = 0; i < 1000; ++i) {
    const std::vector<TokenId> prompt(512, i);
    const std::vector<uint64_t> blocks = router_blocks(prompt, "");
    prefixes.note_placed(blocks, 3);
    REQUIRE(prefixes.find(blocks).count == 1);
  }
  CHECK(prefixes.num_entries() <= prefixes.capacity());
  CHECK(prefixes.num_entries() > prefixes.capacity() / 2);
}

}  // namespace
}  // namespace tandem::router
