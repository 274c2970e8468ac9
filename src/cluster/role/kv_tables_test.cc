#include "cluster/role/kv_tables.h"

#include <doctest/doctest.h>

#include <numeric>

namespace tandem::role {
namespace {

using kv::Part;

handoff::RequestState state_with(size_t prompt, size_t tokens) {
  handoff::RequestState state;
  state.prompt.resize(prompt);
  std::iota(state.prompt.begin(), state.prompt.end(), 1);
  state.choices.resize(1);
  state.choices[0].tokens.assign(tokens, 7);
  return state;
}

TEST_CASE("reservations never exceed the private part, and their blocks are always there") {
  KvStore store({16, 8, 16}, 4);
  CHECK(store.reserve(5));
  CHECK(!store.reserve(4));
  CHECK(store.reserve(3));
  KvTables prompt, decode;
  CHECK(store.fit(prompt, shape_of(state_with(128, 0), 16, 1), Part::kShared));
  CHECK(!store.fit(prompt, shape_of(state_with(129, 0), 16, 1), Part::kShared));  // no change
  CHECK(prompt.size() == 8);
  CHECK(store.fit(decode, shape_of(state_with(128, 0), 16, 1), Part::kPrivate));
  store.release(decode);
  store.unreserve(8);
  CHECK(store.reserve(8));
}

TEST_CASE("blocks and reservations given back wait for the step that may still write them") {
  KvStore store({4, 2, 16}, 4);
  store.wait_for_steps();
  KvTables stopped, next;
  CHECK(store.reserve(2));
  CHECK(store.fit(stopped, shape_of(state_with(32, 0), 16, 1), Part::kPrivate));
  store.release(stopped);
  store.unreserve(2);
  store.flush(100);  // not sealed: the engine has not even been told
  CHECK_FALSE(store.reserve(1));
  store.seal(7);
  store.flush(6);
  CHECK(store.has_waiting());
  CHECK_FALSE(store.fit(next, shape_of(state_with(48, 0), 16, 1), Part::kPrivate));
  store.flush(7);
  CHECK_FALSE(store.has_waiting());
  CHECK(store.reserve(2));
  CHECK(store.fit(next, shape_of(state_with(48, 0), 16, 1), Part::kPrivate));
}

TEST_CASE("a cut table's tail waits too") {
  KvStore store({4, 4, 16}, 4);
  store.wait_for_steps();
  KvTables tables;
  CHECK(store.fit(tables, shape_of(state_with(20, 40), 16, 1), Part::kPrivate));
  CHECK(store.cut(tables, 0, 32) == 32);
  CHECK(store.pool().num_free() == 0);
  store.seal(1);
  store.flush(1);
  CHECK(store.pool().num_free() == 2);
}

TEST_CASE("without a cache nothing is found again") {
  KvStore store({16, 8, 16}, 4);
  store.disable_cache();
  KvTables tables, hit;
  const auto state = state_with(64, 0);
  REQUIRE(store.fit(tables, shape_of(state, 16, 1), Part::kShared));
  store.publish(tables, state, 64);
  store.match(hit, state.prompt, "", 4, Part::kShared);
  CHECK(hit.is_empty());
  store.release(tables);
}

TEST_CASE("what was published is matched by content, and cut so that no block that others read is written") {
  KvStore store({16, 4, 16}, 4);
  KvTables tables;
  const handoff::RequestState state = state_with(40, 24);
  CHECK(store.fit(tables, shape_of(state, 16, 1), Part::kShared));
  store.publish(tables, state, 64);
  CHECK(store.pool().prefix_index().size() == 4);
  SUBCASE("matched after release, as far as tokens are equal") {
    store.release(tables);
    CHECK(store.pool().num_cached() == 4);
    handoff::RequestState other = state_with(64, 0);
    KvTables hit;
    store.match(hit, other.prompt, "", 3, Part::kShared);
    CHECK(hit.size() == 2);  // the third block holds tokens, and those are others
    store.release(hit);
  }
  SUBCASE("cut inside a published block drops it whole") {
    CHECK(store.cut(tables, 0, 50) == 48);
    CHECK(tables.own[0].size() == 1);
    store.release(tables);
  }
  SUBCASE("cut at its edge keeps it") {
    CHECK(store.cut(tables, 0, 48) == 48);
    CHECK(tables.own[0].size() == 1);
    store.release(tables);
  }
  CHECK(store.pool().num_owned() == 0);
}

TEST_CASE("slots run over the blocks of a choice") {
  KvTables tables;
  tables.shared = {kv::BlockId{5}};
  tables.own = {{kv::BlockId{7}, kv::BlockId{9}}};
  const std::vector<Slots> slots = slots_of(tables, 0, 10, 30, 16);
  REQUIRE(slots.size() == 3);
  CHECK((slots[0].block == kv::BlockId{5} && slots[0].begin == 10 && slots[0].count == 6));
  CHECK((slots[1].block == kv::BlockId{7} && slots[1].begin == 0 && slots[1].count == 16));
  CHECK((slots[2].block == kv::BlockId{9} && slots[2].begin == 0 && slots[2].count == 8));
}

}  // namespace
}  // namespace tandem::role
