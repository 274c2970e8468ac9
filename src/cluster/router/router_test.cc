#include "cluster/router/router.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cluster/handoff/shape.h"

namespace tandem::router {
namespace {

using handoff::Role;

NodeLoad idle(Role role) {
  NodeLoad load;
  load.role = role;
  load.is_ready = true;
  load.credits = 8;
  load.prefill_tokens_per_s = 10000;
  load.private_total_blocks = load.private_free_blocks = 1000;
  return load;
}

// Nodes 0..P-1 prefill, P..P+D-1 decode, all idle.
LoadView idle_cluster(uint32_t num_prefills, uint32_t num_decodes) {
  LoadView view;
  for (uint32_t i = 0; i < num_prefills; ++i) view.add(idle(Role::kPrefill));
  for (uint32_t i = 0; i < num_decodes; ++i) view.add(idle(Role::kDecode));
  return view;
}

template <class Change>
void change(LoadView& view, NodeIndex node, const Change& how) {
  NodeLoad load = view.load(node);
  how(load);
  view.update(node, load);
}

std::vector<TokenId> prompt_of(size_t num_tokens, TokenId first = 1) {
  std::vector<TokenId> prompt(num_tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

RouteQuery query_for(uint32_t prompt_tokens, uint64_t draw = 0) {
  RouteQuery query;
  query.draw = draw;
  query.prompt_tokens = prompt_tokens;
  query.final_tokens = 100;
  return query;
}

const PrefixOwners kNobody(8, 1);
const RouterConfig kTtft{};
const RouterConfig kRound{.policy = Policy::kRoundRobin};
const RouterConfig kTwo{.policy = Policy::kPowerOfTwo};

Choice chosen(const RouterConfig& config, const LoadView& view, const RouteQuery& query,
              const PrefixOwners& prefixes = kNobody) {
  const auto result = choose(config, view, prefixes, query);
  REQUIRE(std::holds_alternative<Choice>(result));
  return std::get<Choice>(result);
}

NoChoice refused(const LoadView& view, const RouteQuery& query, const RouterConfig& config = kTtft) {
  const auto result = choose(config, view, kNobody, query);
  REQUIRE(std::holds_alternative<NoChoice>(result));
  return std::get<NoChoice>(result);
}

TEST_CASE("an idle cluster: round robin takes turns, the others spread by the draw") {
  const LoadView view = idle_cluster(3, 2);
  for (uint64_t draw = 0; draw < 7; ++draw) {
    const Choice choice = chosen(kRound, view, query_for(1000, draw));
    CHECK(choice.prefill == draw % 3);
    CHECK(choice.decode == 3 + draw % 2);
  }
  const LoadView large = idle_cluster(50, 50);
  for (const RouterConfig& config : {kTtft, kTwo}) {
    std::vector<int> uses(100);
    for (uint64_t draw = 0; draw < 2000; ++draw) {
      const Choice choice = chosen(config, large, query_for(1000, draw));
      ++uses[choice.prefill], ++uses[choice.decode];
    }
    CHECK(*std::ranges::min_element(uses) > 0);
  }
}

TEST_CASE("the prediction is the queue and what is to be computed, slowed by the ramp") {
  LoadView view = idle_cluster(1, 1);
  change(view, 0, [](NodeLoad& load) { load.queued_prefill_tokens = 4000, load.weight = 0.5; });
  CHECK(chosen(kTtft, view, query_for(1000)).predicted_ttft_s == doctest::Approx(1.0));
}

TEST_CASE("a hot prefill node is passed by load, not by turn") {
  LoadView view = idle_cluster(2, 1);
  change(view, 0, [](NodeLoad& load) { load.queued_prefill_tokens = 50000, load.num_prefills = 9; });
  for (uint64_t draw = 0; draw < 20; ++draw) {
    CHECK(chosen(kTtft, view, query_for(1000, draw)).prefill == 1);
    CHECK(chosen(kTwo, view, query_for(1000, draw)).prefill == 1);
    CHECK(chosen(kRound, view, query_for(1000, draw)).prefill == draw % 2);
  }
}

TEST_CASE("the emptiest private pool decodes; power of two goes by streams") {
  LoadView view = idle_cluster(1, 2);
  change(view, 1, [](NodeLoad& load) { load.private_free_blocks = 200, load.num_decodes = 1; });
  change(view, 2, [](NodeLoad& load) { load.private_free_blocks = 800, load.num_decodes = 5; });
  CHECK(chosen(kTtft, view, query_for(1000)).decode == 2);
  CHECK(chosen(kTwo, view, query_for(1000)).decode == 1);
}

TEST_CASE("prefix affinity, until its node is a hot spot") {
  LoadView view = idle_cluster(200, 1);
  PrefixOwners prefixes(1024, 1000);
  const std::vector<TokenId> prompt = prompt_of(8192);
  const std::vector<uint64_t> blocks = router_blocks(prompt, "");
  prefixes.note_placed(std::span(blocks).first(12), 137);
  RouteQuery query = query_for(8192);
  query.blocks = blocks;
  SUBCASE("idle: the owner, wherever the draw falls") {
    for (query.draw = 0; query.draw < 50; ++query.draw) {
      const Choice choice = chosen(kTtft, view, query, prefixes);
      CHECK(choice.prefill == 137);
      CHECK(choice.cached_tokens == 12 * 512);
    }
  }
  SUBCASE("a little busy: still the sooner one") {
    change(view, 137, [](NodeLoad& load) { load.queued_prefill_tokens = 2000; });
    CHECK(chosen(kTtft, view, query, prefixes).prefill == 137);
  }
  SUBCASE("hot: others, though the owner would be sooner") {
    change(view, 137, [](NodeLoad& load) { load.queued_prefill_tokens = 5000; });
    CHECK(chosen(kTtft, view, query, prefixes).prefill != 137);
    RouterConfig unguarded;
    unguarded.hot_floor_s = 100;
    CHECK(chosen(unguarded, view, query, prefixes).prefill == 137);
  }
  SUBCASE("as busy as all others: no hot spot") {
    for (NodeIndex node = 0; node < 200; ++node) {
      change(view, node, [](NodeLoad& load) { load.queued_prefill_tokens = 5000; });
    }
    CHECK(chosen(kTtft, view, query, prefixes).prefill == 137);
  }
  SUBCASE("an owner that drains is none") {
    change(view, 137, [](NodeLoad& load) { load.is_ready = false; });
    CHECK(chosen(kTtft, view, query, prefixes).prefill != 137);
  }
  SUBCASE("nor one that decodes now") {
    change(view, 137, [](NodeLoad& load) { load.role = Role::kDecode; });
    CHECK(chosen(kTtft, view, query, prefixes).prefill != 137);
  }
  SUBCASE("nor one without a credit") {
    change(view, 137, [](NodeLoad& load) { load.credits = 0; });
    CHECK(chosen(kTtft, view, query, prefixes).prefill != 137);
  }
}

TEST_CASE("a decode node without room is not chosen, whoever is drawn") {
  LoadView view = idle_cluster(1, 100);
  const uint64_t needed = blocks_to_reserve(1000, 100, 1, 16);
  CHECK(needed == 69);
  for (NodeIndex node = 1; node <= 100; ++node) {
    change(view, node, [&](NodeLoad& load) { load.private_free_blocks = node == 77 ? 69 : 68; });
  }
  for (const RouterConfig& config : {kTtft, kRound, kTwo}) {
    for (uint64_t draw = 0; draw < 30; ++draw) CHECK(chosen(config, view, query_for(1000, draw)).decode == 77);
    RouteQuery longer = query_for(1000);
    longer.final_tokens = 105;  // one block more
    CHECK(refused(view, longer, config) == NoChoice::kNoDecodeRoom);
    RouteQuery two = query_for(1000);
    two.num_choices = 2;
    CHECK(refused(view, two, config) == NoChoice::kNoDecodeRoom);
  }
}

TEST_CASE("nodes that drain get nothing, nodes that ramp up little") {
  LoadView view = idle_cluster(2, 2);
  SUBCASE("draining") {
    change(view, 0, [](NodeLoad& load) { load.is_ready = false; });
    change(view, 3, [](NodeLoad& load) { load.is_ready = false; });
    for (const RouterConfig& config : {kTtft, kRound, kTwo}) {
      for (uint64_t draw = 0; draw < 20; ++draw) {
        const Choice choice = chosen(config, view, query_for(1000, draw));
        CHECK(choice.prefill == 1);
        CHECK(choice.decode == 2);
      }
    }
  }
  SUBCASE("ramping: only once the other has ten times the work") {
    change(view, 0, [](NodeLoad& load) { load.weight = 0.1; });
    for (const uint64_t queued : {0, 8000, 10000}) {
      change(view, 1, [&](NodeLoad& load) {
        load.queued_prefill_tokens = queued;
        load.num_prefills = static_cast<uint32_t>(queued / 1000);
      });
      CHECK(chosen(kTtft, view, query_for(1000)).prefill == (queued == 10000 ? 0 : 1));
      CHECK(chosen(kTwo, view, query_for(1000)).prefill == (queued == 10000 ? 0 : 1));
    }
  }
}

TEST_CASE("bad pairs are excluded, unless the caller takes them") {
  LoadView view = idle_cluster(2, 2);
  for (const auto& [p, d] : {std::pair{0, 2}, {0, 3}, {1, 2}}) view.set_bad_pair(p, d, true);
  for (const RouterConfig& config : {kTtft, kRound, kTwo}) {
    const Choice choice = chosen(config, view, query_for(1000));
    CHECK(choice.prefill == 1);
    CHECK(choice.decode == 3);
  }
  view.set_bad_pair(1, 3, true);
  RouteQuery query = query_for(1000);
  CHECK(refused(view, query) == NoChoice::kOnlyBadPairs);
  query.may_be_bad_pair = true;
  chosen(kTtft, view, query);
  view.set_bad_pair(0, 2, false);
  CHECK(chosen(kTtft, view, query_for(1000)).decode == 2);
}

TEST_CASE("each refusal says why") {
  CHECK(refused(idle_cluster(0, 2), query_for(1)) == NoChoice::kNoPrefillNode);
  CHECK(refused(idle_cluster(2, 0), query_for(1)) == NoChoice::kNoDecodeNode);
  LoadView view = idle_cluster(1, 1);
  const NodeIndex prefill = 0, decode = 1;
  RouteQuery query = query_for(1);
  query.not_prefill = std::span(&prefill, 1);
  CHECK(refused(view, query) == NoChoice::kNoPrefillNode);
  query = query_for(1);
  query.not_decode = std::span(&decode, 1);
  CHECK(refused(view, query) == NoChoice::kNoDecodeNode);
  change(view, 0, [](NodeLoad& load) { load.credits = 0; });
  query = query_for(1);
  CHECK(refused(view, query) == NoChoice::kNoCredit);
  query.needs_credit = false;
  chosen(kTtft, view, query);
  change(view, 1, [](NodeLoad& load) { load.fingerprint = 7; });
  CHECK(refused(view, query) == NoChoice::kOnlyBadPairs);
}

TEST_CASE("mixed nodes take both roles, alone if need be") {
  LoadView view;
  view.add(idle(Role::kMixed));
  const Choice choice = chosen(kTtft, view, query_for(100));
  CHECK(choice.prefill == 0);
  CHECK(choice.decode == 0);
}

TEST_CASE("what was placed counts until the next beat") {
  LoadView view = idle_cluster(1, 1);
  const Choice choice = chosen(kTtft, view, query_for(1000));
  view.note_placed(choice.prefill, 1000 - choice.cached_tokens, choice.decode, choice.blocks);
  CHECK(view.load(0).queued_prefill_tokens == 1000);
  CHECK(view.load(0).credits == 7);
  CHECK(view.load(1).private_free_blocks == 1000 - choice.blocks);
  for (int i = 0; i < 7; ++i) view.note_placed(0, 1000, 1, 1000);
  CHECK(view.load(1).private_free_blocks == 0);
  CHECK(refused(view, query_for(1)) == NoChoice::kNoCredit);
}

TEST_CASE("blocks to reserve are the hand-off's, for any lengths") {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint32_t prompt = random() % 300, final_tokens = random() % 300, choices = 1 + random() % 4;
    const handoff::HandoffShape shape{16, 1, prompt, std::vector<uint32_t>(choices, final_tokens),
                                      std::vector<uint8_t>(choices, 0)};
    REQUIRE(blocks_to_reserve(prompt, final_tokens, choices, 16) == shape.num_blocks());
  }
}

// A cluster in which each rule bites now and then.
LoadView random_cluster(std::mt19937& random) {
  LoadView view;
  const uint32_t num_nodes = 1 + random() % 24;
  for (uint32_t i = 0; i < num_nodes; ++i) {
    NodeLoad load = idle(static_cast<Role>(random() % 3));
    load.is_ready = random() % 5 != 0;
    load.weight = 0.1 + 0.1 * (random() % 10);
    load.fingerprint = random() % 8 == 0;
    load.credits = random() % 3;
    load.queued_prefill_tokens = random() % 20000;
    load.num_prefills = random() % 8, load.num_decodes = random() % 8;
    load.private_free_blocks = random() % 140;
    view.add(load);
  }
  for (uint32_t i = random() % (num_nodes * num_nodes + 1); i > 0; --i) {
    view.set_bad_pair(random() % num_nodes, random() % num_nodes, true);
  }
  return view;
}

bool is_allowed(const LoadView& view, const RouteQuery& query, NodeIndex p, NodeIndex d) {
  const NodeLoad &source = view.load(p), &target = view.load(d);
  const uint64_t blocks =
      blocks_to_reserve(query.prompt_tokens, query.final_tokens, query.num_choices, target.block_size);
  return source.is_ready && target.is_ready && source.role != Role::kDecode && target.role != Role::kPrefill &&
         source.fingerprint == target.fingerprint && (!query.needs_credit || source.credits > 0) &&
         (query.may_be_bad_pair || !view.is_bad_pair(p, d)) && blocks <= target.private_free_blocks &&
         std::ranges::find(query.not_prefill, p) == query.not_prefill.end() &&
         std::ranges::find(query.not_decode, d) == query.not_decode.end();
}

TEST_CASE("any cluster: a choice keeps every rule, a refusal means there is no pair, and both repeat") {
  std::mt19937 random(7);
  int num_choices = 0, num_refusals = 0;
  for (int round = 0; round < 20000; ++round) {
    const LoadView view = random_cluster(random);
    const auto num_nodes = static_cast<uint32_t>(view.size());
    const std::vector<uint64_t> blocks = router_blocks(prompt_of(2048, static_cast<TokenId>(random() % 2)), "");
    PrefixOwners prefixes(64, 100);
    for (int i = 0; i < 5; ++i) {
      prefixes.note_placed(std::span(blocks).first(1 + random() % blocks.size()), random() % num_nodes);
    }
    const std::vector<NodeIndex> not_prefill(1, random() % num_nodes), not_decode(1, random() % num_nodes);
    RouteQuery query = query_for(2048 - random() % 2048, random());
    query.blocks = std::span(blocks).first(query.prompt_tokens / 512);
    query.final_tokens = random() % 200;
    query.num_choices = 1 + random() % 3;
    query.needs_credit = random() % 2, query.may_be_bad_pair = random() % 4 == 0;
    if (random() % 2) query.not_prefill = not_prefill, query.not_decode = not_decode;
    const RouterConfig config{.policy = static_cast<Policy>(random() % 3), .seed = random()};

    const auto result = choose(config, view, prefixes, query);
    const auto again = choose(config, view, prefixes, query);
    REQUIRE(result.index() == again.index());
    if (const auto* choice = std::get_if<Choice>(&result)) {
      ++num_choices;
      REQUIRE(choice->prefill == std::get<Choice>(again).prefill);
      REQUIRE(choice->decode == std::get<Choice>(again).decode);
      REQUIRE(is_allowed(view, query, choice->prefill, choice->decode));
      REQUIRE(choice->blocks <= view.load(choice->decode).private_free_blocks);
      REQUIRE(choice->cached_tokens < query.prompt_tokens);
      continue;
    }
    ++num_refusals;
    REQUIRE(std::get<NoChoice>(result) == std::get<NoChoice>(again));
    for (NodeIndex p = 0; p < num_nodes; ++p) {
      for (NodeIndex d = 0; d < num_nodes; ++d) REQUIRE(!is_allowed(view, query, p, d));
    }
  }
  CHECK(num_choices > 1000);
  CHECK(num_refusals > 1000);
}

}  // namespace
}  // namespace tandem::router
