#include "cluster/router/router.h"

#include <algorithm>
#include <tuple>

namespace tandem::router {

namespace {

// splitmix64 of (seed, counter): any draw can be repeated alone.
uint64_t random_at(uint64_t seed, uint64_t counter) {
  uint64_t x = seed + (counter + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct Candidate {
  NodeIndex node = 0;
  double score = 0, tie = 0;  // less is better; then the first drawn, so that idle nodes get equal shares
  uint32_t cached_tokens = 0;
  bool operator<(const Candidate& other) const { return std::tie(score, tie) < std::tie(other.score, other.tie); }
};
using Candidates = std::vector<Candidate>;

bool contains(std::span<const NodeIndex> nodes, NodeIndex node) {
  return std::ranges::find(nodes, node) != nodes.end();
}

double queue_s(const NodeLoad& load) {
  return static_cast<double>(load.queued_prefill_tokens) / (load.prefill_tokens_per_s * load.weight);
}

double ttft_s(const NodeLoad& load, uint32_t uncached_tokens) {
  return queue_s(load) + uncached_tokens / (load.prefill_tokens_per_s * load.weight);
}

class Chooser {
 public:
  Chooser(const RouterConfig& config, const LoadView& view, const PrefixOwners& prefixes, const RouteQuery& query)
      : config_(config), view_(view), query_(query) {
    if (config.policy == Policy::kLeastTtft) found_ = prefixes.find(query.blocks);
  }

  std::variant<Choice, NoChoice> run() {
    const uint32_t num_prefills = config_.policy == Policy::kPowerOfTwo ? 2 : config_.num_prefill_drawn;
    const uint32_t num_decodes = config_.policy == Policy::kPowerOfTwo ? 2 : config_.num_decode_drawn;
    Candidates prefills = prefill_candidates(draw(view_.prefills(), num_prefills, 0), true);
    Candidates decodes = decode_candidates(draw(view_.decodes(), num_decodes, 1));
    if (const auto choice = best_pair(prefills, decodes)) return *choice;
    prefills = prefill_candidates(view_.prefills(), false);
    decodes = decode_candidates(view_.decodes());
    if (prefills.empty()) return is_any_prefill_allowed() ? NoChoice::kNoCredit : NoChoice::kNoPrefillNode;
    if (decodes.empty()) return is_any_decode_allowed() ? NoChoice::kNoDecodeRoom : NoChoice::kNoDecodeNode;
    if (const auto choice = best_pair(prefills, decodes)) return *choice;
    return NoChoice::kOnlyBadPairs;
  }

 private:
  // `count` of the nodes, each once: at random, or one after the other from the draw on.
  std::vector<NodeIndex> draw(std::span<const NodeIndex> nodes, uint32_t count, uint64_t salt) const {
    std::vector<NodeIndex> drawn;
    if (nodes.empty()) return drawn;
    drawn.reserve(count + PrefixOwners::kMaxOwners);
    for (uint32_t i = 0; i < std::min<size_t>(count, nodes.size()); ++i) {
      uint64_t at = query_.draw + i;
      if (config_.policy != Policy::kRoundRobin) at = random_at(config_.seed + salt, query_.draw * 64 + i);
      // The same node twice: its next neighbour that is not there yet.
      while (contains(drawn, nodes[at % nodes.size()])) ++at;
      drawn.push_back(nodes[at % nodes.size()]);
    }
    return drawn;
  }

  bool may_prefill(NodeIndex node) const {
    return (!query_.needs_credit || view_.load(node).credits > 0) && !contains(query_.not_prefill, node);
  }

  Candidates prefill_candidates(std::span<const NodeIndex> nodes, bool is_drawn) {
    Candidates candidates;
    candidates.reserve(nodes.size() + found_.count);
    if (is_drawn) {
      double sum = 0;
      for (const NodeIndex node : nodes) sum += queue_s(view_.load(node));
      hot_limit_s_ = config_.hot_floor_s;
      if (!nodes.empty()) hot_limit_s_ += config_.hot_factor * sum / static_cast<double>(nodes.size());
    }
    for (const NodeIndex node : nodes) {
      if (may_prefill(node)) candidates.push_back(prefill_candidate(node));
    }
    if (!is_drawn) return candidates;
    for (const PrefixOwner& owner : owners()) {
      const bool is_prefill = owner.node < view_.size() && view_.load(owner.node).is_ready &&
                              view_.load(owner.node).role != handoff::Role::kDecode;
      if (!is_prefill || contains(nodes, owner.node) || !may_prefill(owner.node)) continue;
      candidates.push_back(prefill_candidate(owner.node));
    }
    return candidates;
  }

  Candidate prefill_candidate(NodeIndex node) const {
    const NodeLoad& load = view_.load(node);
    Candidate candidate{node, 0, load.num_prefills / load.weight, 0};
    if (config_.policy == Policy::kRoundRobin) candidate.score = turn(node, view_.prefills());
    if (config_.policy == Policy::kPowerOfTwo) candidate.score = (load.num_prefills + 1) / load.weight;
    if (config_.policy == Policy::kLeastTtft) {
      candidate.cached_tokens = cached_tokens(node);
      candidate.score = ttft_s(load, query_.prompt_tokens - candidate.cached_tokens);
    }
    return candidate;
  }

  // The last token is always computed: its logits are needed.
  uint32_t cached_tokens(NodeIndex node) const {
    if (queue_s(view_.load(node)) > hot_limit_s_ || query_.prompt_tokens == 0) return 0;
    for (const PrefixOwner& owner : owners()) {
      if (owner.node == node) return std::min(owner.num_blocks * kRouterBlockTokens, query_.prompt_tokens - 1);
    }
    return 0;
  }

  Candidates decode_candidates(std::span<const NodeIndex> nodes) const {
    Candidates candidates;
    candidates.reserve(nodes.size());
    for (const NodeIndex node : nodes) {
      const NodeLoad& load = view_.load(node);
      const uint64_t blocks = blocks_for(load);
      if (blocks > load.private_free_blocks || contains(query_.not_decode, node)) continue;
      const double streams = (load.num_decodes + 1) / load.weight;
      Candidate candidate{node, streams, 0, 0};
      if (config_.policy == Policy::kRoundRobin) candidate.score = turn(node, view_.decodes());
      if (config_.policy == Policy::kLeastTtft) {
        // How full it will be: what attention reads in each step, and how soon the pool runs out.
        const double used = static_cast<double>(load.private_total_blocks) - load.private_free_blocks;
        const uint32_t total = std::max(load.private_total_blocks, 1u);
        candidate.score = (used + static_cast<double>(blocks)) / (total * load.weight);
        candidate.tie = streams;
      }
      candidates.push_back(candidate);
    }
    return candidates;
  }

  // How many turns from the draw on until it is this node's.
  double turn(NodeIndex node, std::span<const NodeIndex> all) const {
    const auto at = static_cast<uint64_t>(std::ranges::lower_bound(all, node) - all.begin());
    return static_cast<double>((at + all.size() - query_.draw % all.size()) % all.size());
  }

  std::optional<Choice> best_pair(Candidates& prefills, Candidates& decodes) const {
    if (prefills.empty() || decodes.empty()) return std::nullopt;
    const auto& p = *std::ranges::min_element(prefills, std::less<>{});
    const auto& d = *std::ranges::min_element(decodes, std::less<>{});
    if (is_good(p.node, d.node)) return choice_of(p, d);
    // Rare: in order, the first token's time before the decode node.
    std::ranges::stable_sort(prefills, std::less<>{});
    std::ranges::stable_sort(decodes, std::less<>{});
    for (const Candidate& prefill : prefills) {
      for (const Candidate& decode : decodes) {
        if (is_good(prefill.node, decode.node)) return choice_of(prefill, decode);
      }
    }
    return std::nullopt;
  }

  bool is_good(NodeIndex prefill, NodeIndex decode) const {
    if (view_.load(prefill).fingerprint != view_.load(decode).fingerprint) return false;
    return query_.may_be_bad_pair || !view_.is_bad_pair(prefill, decode);
  }

  Choice choice_of(const Candidate& prefill, const Candidate& decode) const {
    return {prefill.node, decode.node, prefill.cached_tokens, blocks_for(view_.load(decode.node)),
            ttft_s(view_.load(prefill.node), query_.prompt_tokens - prefill.cached_tokens)};
  }

  uint64_t blocks_for(const NodeLoad& load) const {
    return blocks_to_reserve(query_.prompt_tokens, query_.final_tokens, query_.num_choices, load.block_size);
  }

  std::span<const PrefixOwner> owners() const { return std::span(found_.owners).first(found_.count); }
  bool is_any_prefill_allowed() const {
    return std::ranges::any_of(view_.prefills(), [&](NodeIndex n) { return !contains(query_.not_prefill, n); });
  }
  bool is_any_decode_allowed() const {
    return std::ranges::any_of(view_.decodes(), [&](NodeIndex n) { return !contains(query_.not_decode, n); });
  }

  const RouterConfig& config_;
  const LoadView& view_;
  const RouteQuery& query_;
  PrefixOwners::Found found_;
  double hot_limit_s_ = 0;
};

}  // namespace

std::optional<Policy> policy_of(std::string_view name) {
  if (name == "least-ttft") return Policy::kLeastTtft;
  if (name == "round-robin") return Policy::kRoundRobin;
  if (name == "power-of-two") return Policy::kPowerOfTwo;
  return std::nullopt;
}

const char* name(NoChoice reason) {
  switch (reason) {
    case NoChoice::kNoPrefillNode:
      return "no prefill node";
    case NoChoice::kNoDecodeNode:
      return "no decode node";
    case NoChoice::kNoCredit:
      return "every prefill node has a full window";
    case NoChoice::kNoDecodeRoom:
      return "no decode node has room for the prompt and its predicted growth";
    case NoChoice::kOnlyBadPairs:
      return "no pair of nodes can hand KV over";
  }
  return "unknown";
}

std::variant<Choice, NoChoice> choose(const RouterConfig& config, const LoadView& view, const PrefixOwners& prefixes,
                                      const RouteQuery& query) {
  return Chooser(config, view, prefixes, query).run();
}

}  // namespace tandem::router
