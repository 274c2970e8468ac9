#include "cluster/role/link_router.h"

#include <doctest/doctest.h>

namespace tandem::role {
namespace {

using handoff::Role;
using router::NoChoice;
using router::NodeIndex;
using router::NodeLoad;
using router::Policy;

// Two nodes that prefill and one that decodes, idle, of 64 blocks of 16 tokens.
struct Rig {
  explicit Rig(Policy policy = Policy::kLeastTtft) : router({.policy = policy}) {
    for (const char* node : {"p1", "p2", "d1"}) router.add(node);
    show();
  }
  void show(uint64_t beat = 1) {
    for (NodeIndex node = 0; node < 3; ++node) {
      if (!is_gone[node]) router.update(node, fingerprints[node], loads[node], beat);
    }
    router.end_update();
  }
  static NodeLoad load_of(Role role) {
    NodeLoad load;
    load.role = role;
    load.is_ready = true;
    load.credits = 4;
    load.prefill_tokens_per_s = 1000;
    load.private_total_blocks = load.private_free_blocks = 64;
    return load;
  }
  std::variant<LinkRouter::Pair, NoChoice> choose(uint64_t id, const std::vector<TokenId>& prompt,
                                                  uint32_t final_tokens = 16) {
    router::RouteQuery query;
    query.prompt_tokens = static_cast<uint32_t>(prompt.size());
    query.final_tokens = final_tokens;
    auto chosen = router.choose({0, id}, prompt, "", query);
    if (const auto* pair = std::get_if<LinkRouter::Pair>(&chosen)) router.commit(*pair, {0, id});
    return chosen;
  }
  std::string prefill_of(uint64_t id, const std::vector<TokenId>& prompt) {
    const auto chosen = choose(id, prompt);
    REQUIRE(std::holds_alternative<LinkRouter::Pair>(chosen));
    CHECK(std::get<LinkRouter::Pair>(chosen).decode == "d1");
    return std::get<LinkRouter::Pair>(chosen).prefill;
  }

  LinkRouter router;
  NodeLoad loads[3] = {load_of(Role::kPrefill), load_of(Role::kPrefill), load_of(Role::kDecode)};
  handoff::Fingerprint fingerprints[3];
  bool is_gone[3] = {};
};

TEST_CASE("the prompt goes where its first token comes soonest") {
  Rig rig;
  rig.loads[0].queued_prefill_tokens = 500;
  rig.show();
  for (uint64_t id = 0; id < 8; ++id) CHECK(rig.prefill_of(id, std::vector<TokenId>(32, TokenId(id))) == "p2");
}

TEST_CASE("a prompt that begins as an earlier one goes to the same node, until that is a hot spot or has lost it") {
  Rig rig;
  rig.loads[2].private_free_blocks = rig.loads[2].private_total_blocks = 4096;
  rig.show();
  const std::vector<TokenId> prompt(1200, 7);
  const std::string first = rig.prefill_of(1, prompt);
  for (uint64_t id = 2; id < 10; ++id) CHECK(rig.prefill_of(id, prompt) == first);
  const NodeIndex owner = first == "p1" ? 0 : 1;
  SUBCASE("hot") {
    rig.loads[owner].queued_prefill_tokens = 5000;
    rig.show();
    CHECK(rig.prefill_of(20, prompt) != first);
  }
  SUBCASE("lost, and a little busier than the other") {
    rig.loads[owner].queued_prefill_tokens = 100;
    rig.show();
    CHECK(rig.prefill_of(20, prompt) == first);
    rig.router.forget_cache(owner);
    CHECK(rig.prefill_of(21, std::vector<TokenId>(1200, 8)) != first);
  }
}

TEST_CASE("what is placed counts until the node's next beat; then its own numbers do") {
  Rig rig;  // 64 blocks: two requests of 30 each
  const std::vector<TokenId> prompt(400, 3);
  CHECK(std::holds_alternative<LinkRouter::Pair>(rig.choose(1, prompt, 64)));
  rig.show();
  CHECK(std::holds_alternative<LinkRouter::Pair>(rig.choose(2, prompt, 64)));
  rig.show();
  const auto third = rig.choose(3, prompt, 64);
  REQUIRE(std::holds_alternative<NoChoice>(third));
  CHECK(std::get<NoChoice>(third) == NoChoice::kNoDecodeRoom);  // it may wait
  rig.show(2);
  CHECK(std::holds_alternative<LinkRouter::Pair>(rig.choose(3, prompt, 64)));
}

TEST_CASE("what no pool can ever hold is not a matter of waiting") {
  Rig rig;
  const auto chosen = rig.choose(1, std::vector<TokenId>(64 * 16, 3), 64);
  REQUIRE(std::holds_alternative<NoChoice>(chosen));
  CHECK(std::get<NoChoice>(chosen) == NoChoice::kNoDecodeNode);
}

TEST_CASE("nodes that are gone, or cannot hand KV over to each other, are no pair") {
  Rig rig;
  SUBCASE("gone") {
    rig.is_gone[0] = true;
    rig.show();
    for (uint64_t id = 0; id < 8; ++id) CHECK(rig.prefill_of(id, {1, 2, 3}) == "p2");
    rig.is_gone[1] = true;
    rig.show();
    CHECK(std::get<NoChoice>(rig.choose(9, {1, 2, 3})) == NoChoice::kNoPrefillNode);
  }
  SUBCASE("of another model") {
    rig.fingerprints[1].weights = "other";
    rig.show();
    for (uint64_t id = 0; id < 8; ++id) CHECK(rig.prefill_of(id, {1, 2, 3}) == "p1");
  }
}

TEST_CASE("in turns, each prefill node gets its share") {
  Rig rig(Policy::kRoundRobin);
  int count[2] = {};
  for (uint64_t id = 0; id < 10; ++id) ++count[rig.prefill_of(id, {1, 2, 3}) == "p2"];
  CHECK(count[0] == 5);
  CHECK(count[1] == 5);
}

}  // namespace
}  // namespace tandem::role
