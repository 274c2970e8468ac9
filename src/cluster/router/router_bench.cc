// router_bench: decisions a second on one core. A decision hashes the prompt, finds its prefix's owners, chooses, and
// notes the choice in the view and the index; each node beats now and then, which clears what was noted.

#include <cstdio>

#include "base/clock.h"
#include "cluster/router/router.h"

namespace tandem::router {
namespace {

constexpr uint32_t kPromptTokens = 2048, kNumPrompts = 4096, kNumDecisions = 200000;

struct Case {
  Policy policy;
  const char* name;
  uint32_t num_nodes;
  bool is_full;  // no decode node has room, so that every node is looked at
};

NodeLoad fresh_load(const Case& c, NodeIndex node) {
  NodeLoad load;
  load.role = node % 2 == 0 ? handoff::Role::kPrefill : handoff::Role::kDecode;
  load.is_ready = true;
  load.credits = 64;
  load.prefill_tokens_per_s = 10000;
  load.private_total_blocks = 20000;
  load.private_free_blocks = c.is_full ? 10 : 20000;
  return load;
}

void measure(const Case& c, const std::vector<std::vector<TokenId>>& prompts) {
  LoadView view;
  for (NodeIndex node = 0; node < c.num_nodes; ++node) view.add(fresh_load(c, node));
  PrefixOwners prefixes(size_t{1} << 16, 1 << 16);
  RouterConfig config;
  config.policy = c.policy;
  const SystemClock clock;
  uint64_t num_chosen = 0, num_hits = 0;
  const double start = clock.now_s();
  for (uint32_t i = 0; i < kNumDecisions; ++i) {
    const std::vector<TokenId>& prompt = prompts[i * 2654435761u % kNumPrompts];
    const std::vector<uint64_t> blocks = router_blocks(prompt, "tenant");
    RouteQuery query;
    query.draw = i;
    query.blocks = blocks;
    query.prompt_tokens = kPromptTokens;
    query.final_tokens = 256;
    const auto result = choose(config, view, prefixes, query);
    if (const auto* choice = std::get_if<Choice>(&result)) {
      ++num_chosen;
      num_hits += choice->cached_tokens > 0;
      view.note_placed(choice->prefill, kPromptTokens - choice->cached_tokens, choice->decode, choice->blocks);
      prefixes.note_placed(blocks, choice->prefill);
    }
    const NodeIndex beats = i % c.num_nodes;
    view.update(beats, fresh_load(c, beats));
  }
  const double seconds = clock.now_s() - start;
  std::printf("%-14s %5u nodes%s: %9.0f decisions/s, %5.1f %% chosen, %5.1f %% with a prefix\n", c.name, c.num_nodes,
              c.is_full ? ", decode full" : "", kNumDecisions / seconds, 100.0 * num_chosen / kNumDecisions,
              100.0 * num_hits / kNumDecisions);
}

}  // namespace
}  // namespace tandem::router

int main() {
  using namespace tandem::router;
  std::vector<std::vector<tandem::TokenId>> prompts(kNumPrompts);
  for (uint32_t p = 0; p < kNumPrompts; ++p) {
    for (uint32_t t = 0; t < kPromptTokens; ++t) prompts[p].push_back(static_cast<tandem::TokenId>(p * 31 + t));
  }
  for (const uint32_t num_nodes : {10u, 100u, 1000u, 10000u}) {
    measure({Policy::kLeastTtft, "least TTFT", num_nodes, false}, prompts);
    measure({Policy::kRoundRobin, "round robin", num_nodes, false}, prompts);
    measure({Policy::kPowerOfTwo, "power of two", num_nodes, false}, prompts);
  }
  measure({Policy::kLeastTtft, "least TTFT", 1000, true}, prompts);
}
