#include "serve/kv/block_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "serve/kv/block_table.h"

namespace tandem::kv {
namespace {

constexpr uint32_t kBlockSize = 16;

std::vector<TokenId> block_tokens(TokenId first) {
  std::vector<TokenId> tokens(kBlockSize);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

BlockPool make_pool(uint32_t num_blocks, uint32_t num_private = 0) { return BlockPool({num_blocks, num_private}); }

std::vector<uint32_t> ids(const std::vector<BlockId>& blocks) {
  std::vector<uint32_t> result;
  for (const BlockId block : blocks) result.push_back(index(block));
  return result;
}

TEST_CASE("KVC-05: a shared block returns to the pool at its last release") {
  BlockPool pool = make_pool(1);
  const BlockId block = pool.take(1, Part::kShared)->front();
  CHECK(pool.share(block, Part::kShared));
  pool.release(block);
  CHECK(!pool.take(1, Part::kShared));
  pool.release(block);
  CHECK(pool.take(1, Part::kShared));
}

TEST_CASE("blocks are neighbours where they can be") {
  BlockPool pool = make_pool(16);
  const auto first = *pool.take(4, Part::kShared);
  CHECK(ids(first) == std::vector<uint32_t>{0, 1, 2, 3});
  const auto second = *pool.take(3, Part::kShared);
  CHECK(ids(second) == std::vector<uint32_t>{4, 5, 6});
  pool.release_all(first);
  SUBCASE("growth goes on after the last block") {
    CHECK(ids(*pool.take(2, Part::kPrivate, second.back())) == std::vector<uint32_t>{7, 8});
  }
  SUBCASE("a run that is long enough is found behind a hole that is not") {
    CHECK(ids(*pool.take(5, Part::kShared)) == std::vector<uint32_t>{7, 8, 9, 10, 11});
    CHECK(ids(*pool.take(4, Part::kShared)) == std::vector<uint32_t>{0, 1, 2, 3});
  }
  SUBCASE("without such a run the holes are used") {
    CHECK(pool.take(13, Part::kShared)->size() == 13);
    CHECK(pool.num_free() == 0);
  }
}

TEST_CASE("a block changes its part without moving, while it has one owner and the part has room") {
  BlockPool pool = make_pool(3, 1);
  const auto blocks = *pool.take(2, Part::kShared);
  CHECK(!pool.take(1, Part::kShared));
  CHECK(pool.recharge(blocks[0], Part::kPrivate));
  CHECK(pool.num_charged(Part::kPrivate) == 1);
  CHECK(!pool.recharge(blocks[1], Part::kPrivate));  // it is full
  const BlockId other = pool.take(1, Part::kShared)->front();
  CHECK(!pool.recharge(blocks[0], Part::kShared));
  pool.release(other);
  CHECK(pool.recharge(blocks[0], Part::kShared));
  pool.share(blocks[0], Part::kShared);
  CHECK(!pool.recharge(blocks[0], Part::kPrivate));
  CHECK(pool.num_charged(Part::kShared) == 2);
}

TEST_CASE("prefill never takes the private part, decode takes it first and then the rest") {
  BlockPool pool = make_pool(10, 4);
  CHECK(pool.num_available(Part::kShared) == 6);
  CHECK(pool.num_available(Part::kPrivate) == 10);
  CHECK(!pool.take(7, Part::kShared));
  const auto prompt = *pool.take(5, Part::kShared);
  const auto decode = *pool.take(5, Part::kPrivate);
  CHECK(pool.num_charged(Part::kPrivate) == 4);
  CHECK(pool.num_charged(Part::kShared) == 6);
  pool.release_all(prompt);
  // One of decode's blocks still sits in the shared part.
  CHECK(pool.num_available(Part::kShared) == 5);
  CHECK(!pool.take(6, Part::kShared));
  pool.release_all(decode);
  CHECK(pool.num_available(Part::kShared) == 6);
}

TEST_CASE("a prompt that finds a decode block in the index does not keep the private part") {
  BlockPool pool = make_pool(4, 1);
  const BlockId decode = pool.take(1, Part::kPrivate)->front();
  CHECK(pool.publish(kRootNode, "", block_tokens(0), decode));
  SUBCASE("its charge moves to the shared part") {
    CHECK(pool.share(decode, Part::kShared));
    CHECK(pool.num_charged(Part::kPrivate) == 0);
    CHECK(pool.num_charged(Part::kShared) == 1);
  }
  SUBCASE("and there is no hit when the shared part is full") {
    REQUIRE(pool.take(3, Part::kShared));
    CHECK(!pool.share(decode, Part::kShared));
    CHECK(pool.num_owners(decode) == 1);
  }
  SUBCASE("also when nobody owns it any more") {
    pool.release(decode);
    REQUIRE(pool.take(3, Part::kShared));
    CHECK(!pool.share(decode, Part::kShared));
    CHECK(pool.share(decode, Part::kPrivate));
  }
}

TEST_CASE("cached blocks are found again and evicted the longest unused first") {
  BlockPool pool = make_pool(3);
  std::vector<BlockId> blocks = *pool.take(3, Part::kShared);
  for (TokenId i = 0; i < 3; ++i) REQUIRE(pool.publish(kRootNode, "", block_tokens(i * 100), blocks[i]));
  pool.release(blocks[1]);
  pool.release(blocks[0]);
  pool.release(blocks[2]);
  CHECK(pool.num_cached() == 3);
  CHECK(pool.match(block_tokens(100), "", 1).blocks == std::vector<BlockId>{blocks[1]});
  CHECK(ids(*pool.take(1, Part::kShared)) == std::vector<uint32_t>{index(blocks[1])});
  CHECK(pool.match(block_tokens(100), "", 1).blocks.empty());
  CHECK(pool.match(block_tokens(0), "", 1).blocks.size() == 1);
  // A use makes it young again.
  REQUIRE(pool.share(blocks[0], Part::kShared));
  pool.release(blocks[0]);
  CHECK(ids(*pool.take(1, Part::kShared)) == std::vector<uint32_t>{index(blocks[2])});
}

TEST_CASE("the tail of a chain is evicted before its head") {
  BlockPool pool = make_pool(2);
  const auto chain = *pool.take(2, Part::kShared);
  const auto head = pool.publish(kRootNode, "", block_tokens(0), chain[0]);
  REQUIRE(head);
  REQUIRE(pool.publish(*head, "", block_tokens(16), chain[1]));
  pool.release_all(chain);
  CHECK(ids(*pool.take(1, Part::kShared)) == std::vector<uint32_t>{index(chain[1])});
}

TEST_CASE("undo restores blocks, charges, eviction order and index exactly") {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    BlockPool pool = make_pool(12, 3);
    std::vector<BlockId> owned;
    const auto act = [&](bool may_publish) {
      const uint32_t what = random() % 4;
      if (what == 0) {
        if (auto taken = pool.take(1 + random() % 4, random() % 2 ? Part::kShared : Part::kPrivate)) {
          owned.insert(owned.end(), taken->begin(), taken->end());
        }
      } else if (what == 1 && !owned.empty()) {
        const size_t at = random() % owned.size();
        pool.release(owned[at]);
        owned.erase(owned.begin() + static_cast<ptrdiff_t>(at));
      } else if (what == 2) {
        const auto match = pool.match(block_tokens(static_cast<TokenId>(random() % 6) * 100), "", 1);
        if (!match.blocks.empty() && pool.share(match.blocks[0], Part::kShared)) owned.push_back(match.blocks[0]);
      } else if (may_publish && !owned.empty()) {
        const BlockId block = owned[random() % owned.size()];
        const auto tokens = block_tokens(static_cast<TokenId>(random() % 6) * 100);
        if (!pool.prefix_index().contains(block)) REQUIRE(pool.publish(kRootNode, "", tokens, block));
      }
    };
    const auto check = [&] {
      std::vector<uint32_t> owners(12);
      for (const BlockId block : owned) ++owners[index(block)];
      pool.check_invariants(owners);
    };
    for (int i = 0; i < 40; ++i) act(true);
    check();
    const std::string before = pool.dump();
    const std::vector<BlockId> owned_before = owned;
    pool.begin();
    for (int i = 0; i < 20; ++i) act(false);
    const size_t mark = pool.mark();
    const std::string middle = pool.dump();
    const std::vector<BlockId> owned_middle = owned;
    for (int i = 0; i < 20; ++i) act(false);
    check();
    pool.undo_to(mark);
    owned = owned_middle;
    check();
    CHECK(pool.dump() == middle);
    pool.undo_to(0);
    pool.accept();
    owned = owned_before;
    check();
    CHECK(pool.dump() == before);
  }
}

TEST_CASE("block table sizes round up and do not overflow") {
  CHECK(blocks_for(0, 16) == 0);
  CHECK(blocks_for(1, 16) == 1);
  CHECK(blocks_for(16, 16) == 1);
  CHECK(blocks_for(17, 16) == 2);
  CHECK(blocks_for(UINT32_MAX, 16) == (1u << 28));
}

}  // namespace
}  // namespace tandem::kv
