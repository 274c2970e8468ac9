#include "plugins/cpu/work_shares.h"

#include <doctest/doctest.h>

#include <vector>

namespace tandem::cpu {
namespace {

struct Taking {
  uint32_t num_members, num_items;
  std::vector<uint32_t> order;     // who takes, by turns
  std::vector<uint32_t> expected;  // what each turn gets
};

TEST_CASE("a member takes its own share first, then what others have left") {
  constexpr uint32_t none = WorkShares::kNone;
  const Taking takings[] = {
      {1, 3, {0, 0, 0, 0}, {0, 1, 2, none}},
      {2, 6, {0, 1, 0, 1, 0, 1, 0, 1}, {0, 3, 1, 4, 2, 5, none, none}},
      {2, 6, {1, 1, 1, 1, 0, 1, 0}, {3, 4, 5, 0, 1, 2, none}},
      {3, 2, {0, 1, 2, 0}, {0, 1, none, none}},
      {3, 2, {2, 2, 2}, {1, 0, none}},
      {2, 0, {0, 1}, {none, none}},
  };
  for (const Taking& taking : takings) {
    WorkShares shares(4);
    for (int use = 0; use < 2; ++use) {  // set anew, they begin anew
      for (uint32_t member = 0; member < taking.num_members; ++member) {
        shares.set(member, taking.num_members, taking.num_items);
      }
      for (size_t turn = 0; turn < taking.order.size(); ++turn) {
        CAPTURE(turn);
        CHECK(shares.take(taking.order[turn], taking.num_members) == taking.expected[turn]);
      }
    }
  }
}

TEST_CASE("every item is taken once, for any number of members and items") {
  for (uint32_t members = 1; members <= 5; ++members) {
    for (uint32_t items = 0; items <= 23; ++items) {
      WorkShares shares(5);
      for (uint32_t member = 0; member < members; ++member) shares.set(member, members, items);
      std::vector<uint32_t> times(items, 0);
      uint32_t turn = items * 7 + members;
      for (uint32_t i = 0; i < items; ++i) {
        turn = turn * 1664525 + 1013904223;
        const uint32_t member = (turn >> 16) % members;
        const uint32_t expected = shares.peek(member);
        const uint32_t item = shares.take(member, members);
        REQUIRE(item < items);
        if (expected != WorkShares::kNone) CHECK(item == expected);
        ++times[item];
      }
      for (const uint32_t count : times) CHECK(count == 1);
      for (uint32_t member = 0; member < members; ++member) {
        CHECK(shares.peek(member) == WorkShares::kNone);
        CHECK(shares.take(member, members) == WorkShares::kNone);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
