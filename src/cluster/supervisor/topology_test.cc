#include "cluster/supervisor/topology.h"

#include <doctest/doctest.h>

#include "cluster/supervisor/core_plan.h"

namespace tandem::supervisor {
namespace {

TEST_CASE("a topology names prefill, decode and mixed nodes in this order, each at most once") {
  const auto is = [](std::string_view text, Topology expected) {
    const auto parsed = parse_topology(text);
    REQUIRE_MESSAGE(parsed, std::string(text));
    CHECK(parsed.value() == expected);
  };
  is("2P1D", {2, 1, 0});
  is("3M", {0, 0, 3});
  is("1P1D1M", {1, 1, 1});
  is("1p12d", {1, 12, 0});
  is("2P3M", {2, 0, 3});
  is("0P1D1M", {0, 1, 1});
}

TEST_CASE("what is no topology is refused with the reason") {
  const auto why = [](std::string_view text) {
    const auto parsed = parse_topology(text);
    return parsed ? "(taken)" : parsed.error().message;
  };
  for (const char* text : {"", "P", "2", "2P1", "1D1P", "1P1P1D", "-1P1D", "2X", "2P 1D", "1P1D1M1", "2P1D\n",
                           "99999999999999P1D", "257M", "200P100D", "0M"}) {
    CAPTURE(text);
    CHECK(why(text).find("such as 2P1D") != std::string::npos);
  }
  CHECK(why("2P").find("nobody would decode") != std::string::npos);
  CHECK(why("2D").find("nobody would prefill") != std::string::npos);
  CHECK(why("0P1D").find("nobody would prefill") != std::string::npos);
}

TEST_CASE("nodes are named by the role in which they start") {
  std::string names;
  for (const NamedNode& node : nodes_of({2, 1, 1})) names += node.name + " ";
  CHECK(names == "p1 p2 d1 m1 ");
  CHECK(nodes_of({2, 1, 1})[2].role == handoff::Role::kDecode);
  CHECK(nodes_of({2, 1, 1})[3].role == handoff::Role::kMixed);
}

TEST_CASE("cores are shared out in neighbours, and only when each node can have its own") {
  const auto plan = core_plan({0, 1, 2, 3, 6, 7, 8}, 3, 0);
  REQUIRE(plan.size() == 3);
  CHECK(plan[0].num_threads == 2);
  CHECK(plan[0].cores == std::vector<int>{0, 1});
  CHECK(plan[1].cores == std::vector<int>{2, 3});
  CHECK(plan[2].cores == std::vector<int>{6, 7});
  for (const NodeCores& node : core_plan({0, 1}, 3, 0)) {
    CHECK(node.num_threads == 1);
    CHECK(node.cores.empty());
  }
  for (const NodeCores& node : core_plan({0, 1, 2, 3}, 3, 2)) {
    CHECK(node.num_threads == 2);
    CHECK(node.cores.empty());
  }
  CHECK(core_plan({4, 5}, 2, 1)[1].cores == std::vector<int>{5});
  CHECK(core_plan({}, 2, 0)[0].num_threads == 1);
}

}  // namespace
}  // namespace tandem::supervisor
