#include "serve/kv/prefix_index.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

namespace tandem::kv {
namespace {

constexpr uint32_t kBlockSize = 16;

std::vector<TokenId> tokens_of(TokenId value) { return std::vector<TokenId>(kBlockSize, value); }

TEST_CASE("content under a parent is found, and nothing else") {
  PrefixIndex index(8, kBlockSize);
  const auto a = index.publish(kRootNode, "", tokens_of(1), BlockId{3});
  REQUIRE(a);
  const auto b = index.publish(*a, "", tokens_of(2), BlockId{5});
  REQUIRE(b);
  CHECK(index.find(kRootNode, "", tokens_of(1)) == a);
  CHECK(index.find(*a, "", tokens_of(2)) == b);
  CHECK(!index.find(kRootNode, "", tokens_of(2)));
  CHECK(!index.find(*a, "", tokens_of(1)));
  std::vector<TokenId> almost = tokens_of(1);
  almost.back() = 9;
  CHECK(!index.find(kRootNode, "", almost));
  index.check_invariants();
}

TEST_CASE("KVC-02: the salt separates tenants") {
  PrefixIndex index(8, kBlockSize);
  REQUIRE(index.publish(kRootNode, "alice", tokens_of(1), BlockId{0}));
  CHECK(!index.find(kRootNode, "", tokens_of(1)));
  CHECK(!index.find(kRootNode, "bob", tokens_of(1)));
  const auto bob = index.publish(kRootNode, "bob", tokens_of(1), BlockId{1});
  REQUIRE(bob);
  CHECK(bob->block == 1);
}

TEST_CASE("equal content is kept once") {
  PrefixIndex index(8, kBlockSize);
  const auto first = index.publish(kRootNode, "", tokens_of(1), BlockId{0});
  CHECK(index.publish(kRootNode, "", tokens_of(1), BlockId{1}) == first);
  CHECK(!index.contains(BlockId{1}));
}

// Fails when find() believes the hash.
TEST_CASE("KVC-02: with a hash of four bits matches are those of the content") {
  for (const uint64_t mask : {uint64_t{0}, uint64_t{15}}) {
    PrefixIndex weak(64, kBlockSize, mask);
    std::map<std::vector<TokenId>, uint32_t> expected;
    std::mt19937 random(3);
    for (uint32_t b = 0; b < 64; ++b) {
      std::vector<TokenId> tokens = tokens_of(0);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 2);
      const auto node = weak.publish(kRootNode, "", tokens, BlockId{b});
      REQUIRE(node);
      CHECK(node->block == expected.emplace(tokens, b).first->second);
    }
    for (const auto& [tokens, block] : expected) {
      const auto node = weak.find(kRootNode, "", tokens);
      REQUIRE(node);
      CHECK(node->block == block);
      std::vector<TokenId> other = tokens;
      other[7] = 5;
      CHECK(!weak.find(kRootNode, "", other));
    }
    weak.check_invariants();
  }
}

TEST_CASE("removing a node takes all below it, and restoring puts the tree back") {
  PrefixIndex index(8, kBlockSize);
  const auto a = index.publish(kRootNode, "s", tokens_of(1), BlockId{0});
  const auto b = index.publish(*a, "s", tokens_of(2), BlockId{1});
  const auto c = index.publish(*b, "s", tokens_of(3), BlockId{2});
  REQUIRE(index.publish(*a, "s", tokens_of(4), BlockId{3}));
  REQUIRE(index.publish(kRootNode, "s", tokens_of(9), BlockId{4}));
  const auto removed = index.remove(BlockId{0});
  CHECK(removed.size() == 4);
  CHECK(index.size() == 1);
  CHECK(!index.find(*a, "s", tokens_of(2)));
  CHECK(!index.publish(*b, "s", tokens_of(7), BlockId{6}));  // its parent is gone
  index.check_invariants();
  for (size_t i = removed.size(); i-- > 0;) index.restore(removed[i]);
  CHECK(index.size() == 5);
  CHECK(index.find(*b, "s", tokens_of(3)) == c);
  index.check_invariants();
}

TEST_CASE("a node id does not match the block's next content") {
  PrefixIndex index(2, kBlockSize);
  const auto old = index.publish(kRootNode, "", tokens_of(1), BlockId{0});
  index.remove(BlockId{0});
  REQUIRE(index.publish(kRootNode, "", tokens_of(2), BlockId{0}));
  CHECK(!index.publish(*old, "", tokens_of(3), BlockId{1}));
}

}  // namespace
}  // namespace tandem::kv
