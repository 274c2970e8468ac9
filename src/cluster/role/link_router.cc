#include "cluster/role/link_router.h"

#include <algorithm>
#include <utility>

namespace tandem::role {

using router::Choice;
using router::NoChoice;
using router::NodeIndex;
using router::NodeLoad;

NodeIndex LinkRouter::add(const std::string& node) {
  const auto it = by_name_.find(node);
  if (it != by_name_.end()) return it->second;
  const NodeIndex index = view_.add({});
  by_name_.emplace(node, index);
  known_.push_back({node});
  return index;
}

void LinkRouter::update(NodeIndex node, const handoff::Fingerprint& fingerprint, NodeLoad load, uint64_t beat) {
  Known& known = known_[node];
  known.is_updated = true;
  if (known.beat != beat) {
    known.beat = beat;
    known.placed_blocks = 0;
  }
  const auto kind = std::ranges::find_if(
      kinds_, [&](const handoff::Fingerprint& other) { return handoff::differing_field(other, fingerprint).empty(); });
  load.fingerprint = static_cast<uint32_t>(kind - kinds_.begin());
  if (kind == kinds_.end()) kinds_.push_back(fingerprint);
  const uint64_t placed = std::min<uint64_t>(known.placed_blocks, load.private_free_blocks);
  load.private_free_blocks -= static_cast<uint32_t>(placed);
  view_.update(node, load);
}

void LinkRouter::end_update() {
  for (NodeIndex node = 0; node < known_.size(); ++node) {
    if (!std::exchange(known_[node].is_updated, false) && view_.load(node).is_ready) view_.update(node, {});
  }
}

bool LinkRouter::fits_nowhere(const router::RouteQuery& query) const {
  return std::ranges::none_of(view_.decodes(), [&](NodeIndex node) {
    const NodeLoad& load = view_.load(node);
    return router::blocks_to_reserve(query.prompt_tokens, query.final_tokens, query.num_choices, load.block_size) <=
           load.private_total_blocks;
  });
}

std::variant<LinkRouter::Pair, NoChoice> LinkRouter::choose(const handoff::RequestId& request,
                                                            std::span<const TokenId> prompt, std::string_view salt,
                                                            router::RouteQuery query) {
  if (config_.policy == router::Policy::kLeastTtft) {
    const auto [it, is_new] = blocks_.try_emplace(request);
    if (is_new) it->second = router::router_blocks(prompt, salt);
    query.blocks = it->second;
  }
  query.draw = draw_;
  const auto chosen = router::choose(config_, view_, prefixes_, query);
  if (const auto* reason = std::get_if<NoChoice>(&chosen)) {
    return *reason == NoChoice::kNoDecodeRoom && fits_nowhere(query) ? NoChoice::kNoDecodeNode : *reason;
  }
  const auto& choice = std::get<Choice>(chosen);
  ++draw_;
  return Pair{known_[choice.prefill].node, known_[choice.decode].node, choice.blocks};
}

void LinkRouter::commit(const Pair& pair, const handoff::RequestId& request) {
  known_[by_name_.at(pair.decode)].placed_blocks += pair.blocks;
  const auto it = blocks_.find(request);
  if (it != blocks_.end()) prefixes_.note_placed(it->second, by_name_.at(pair.prefill));
}

}  // namespace tandem::role
