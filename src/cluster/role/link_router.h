#pragma once
// LinkRouter: the router's choice for a request that nobody holds anything of yet, over the nodes as a gateway sees
// them. Keeps what the router remembers between choices: the draws, who owns which prefix, what was placed since a
// node's last beat. One thread; no clock.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/handoff/messages.h"
#include "cluster/router/router.h"

namespace tandem::role {

class LinkRouter {
 public:
  explicit LinkRouter(const router::RouterConfig& config) : config_(config) {}

  // A node that is chosen from. `beat` numbers the beat that `load` is of.
  router::NodeIndex add(const std::string& node);
  void update(router::NodeIndex node, const handoff::Fingerprint& fingerprint, router::NodeLoad load, uint64_t beat);
  // Nodes that were not updated since the last call are no longer there.
  void end_update();
  void forget_cache(router::NodeIndex node) { prefixes_.forget(node); }

  struct Pair {
    std::string prefill, decode;
    uint64_t blocks = 0;  // to be reserved
  };
  // kNoDecodeRoom only when the request would fit if the pools were empty: then it is a matter of waiting.
  // `query`: all but draw and blocks.
  std::variant<Pair, router::NoChoice> choose(const handoff::RequestId& request, std::span<const TokenId> prompt,
                                              std::string_view salt, router::RouteQuery query);
  // The choice is used.
  void commit(const Pair& pair, const handoff::RequestId& request);
  void forget(const handoff::RequestId& request) { blocks_.erase(request); }

 private:
  struct Known {
    std::string node;
    uint64_t beat = 0;
    uint64_t placed_blocks = 0;  // since that beat
    bool is_updated = false;
  };
  bool fits_nowhere(const router::RouteQuery& query) const;

  router::RouterConfig config_;
  router::LoadView view_;
  router::PrefixOwners prefixes_{size_t{1} << 14, 1 << 16};
  std::vector<Known> known_;                    // by index
  std::map<std::string, router::NodeIndex> by_name_;
  std::vector<handoff::Fingerprint> kinds_;     // nodes of one kind can hand KV over to each other
  std::map<handoff::RequestId, std::vector<uint64_t>> blocks_;  // of prompts that wait, so that each is hashed once
  uint64_t draw_ = 0;
};

}  // namespace tandem::role
