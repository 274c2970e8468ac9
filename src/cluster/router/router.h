#pragma once
// The choice of (prefill, decode) for a request, as a pure function of the load view: the same inputs, the same choice.
//
// A choice looks at a few nodes, not at all: for prefill the owners of the prompt's prefix and some nodes drawn at
// random, for decode some drawn nodes. Only when no pair of these will do are all nodes looked at, so a refusal means
// that there is no pair.

#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "cluster/router/load_view.h"
#include "cluster/router/prefix_owners.h"

namespace tandem::router {

enum class Policy : uint8_t {
  kLeastTtft,   // the earliest predicted first token, cached prefixes counted; then the emptiest private pool
  kRoundRobin,  // the next that will do
  kPowerOfTwo,  // the less busy of two drawn, by number of requests
};

// By name: least-ttft, round-robin, power-of-two.
std::optional<Policy> policy_of(std::string_view name);

struct RouteQuery {
  uint64_t draw = 0;                 // the caller's counter of choices; what is random follows from it
  std::span<const uint64_t> blocks;  // router_blocks() of the prompt; empty: no affinity
  uint32_t prompt_tokens = 0;        // to be prefilled, tokens emitted earlier included
  uint32_t final_tokens = 0;         // predicted length of a choice
  uint32_t num_choices = 1;
  bool needs_credit = true;      // a first attempt does
  bool may_be_bad_pair = false;  // a pair that failed lately is still better than none: the caller says when
  std::span<const NodeIndex> not_prefill, not_decode;  // refused, or gave no answer
};

struct Choice {
  NodeIndex prefill = 0, decode = 0;
  uint32_t cached_tokens = 0;   // that the prefill node probably holds
  uint64_t blocks = 0;          // to be reserved at the decode node
  double predicted_ttft_s = 0;  // queue and prefill; the transfer is not in it
};

enum class NoChoice : uint8_t {
  kNoPrefillNode,  // none ready, or all excluded
  kNoDecodeNode,
  kNoCredit,      // each prefill node has a full window
  kNoDecodeRoom,  // no private pool has room for the prompt and its predicted growth
  kOnlyBadPairs,  // nodes there are, but no pair of them can hand KV over
};
const char* name(NoChoice reason);

struct RouterConfig {
  Policy policy = Policy::kLeastTtft;
  uint64_t seed = 0;
  uint32_t num_prefill_drawn = 4, num_decode_drawn = 4;  // kPowerOfTwo draws 2
  // Hot-spot guard: an owner's prefix counts for nothing once its queue is longer than this many times the mean of the
  // drawn nodes plus a floor. So a prefix that everybody shares spreads before its node is the slowest way to it.
  double hot_factor = 2, hot_floor_s = 0.25;
};

std::variant<Choice, NoChoice> choose(const RouterConfig& config, const LoadView& view, const PrefixOwners& prefixes,
                                      const RouteQuery& query);

}  // namespace tandem::router
