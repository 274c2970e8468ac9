#include "cluster/router/load_view.h"

#include <algorithm>

namespace tandem::router {

using handoff::Role;

uint64_t blocks_to_reserve(uint64_t prompt_tokens, uint64_t final_tokens, uint64_t num_choices, uint64_t block_size) {
  const uint64_t shared = prompt_tokens / block_size;
  const uint64_t of_one_choice = (prompt_tokens + final_tokens + block_size - 1) / block_size;
  return shared + num_choices * (of_one_choice - shared);
}

NodeIndex LoadView::add(const NodeLoad& load) {
  nodes_.push_back(load);
  list_roles();
  return static_cast<NodeIndex>(nodes_.size() - 1);
}

void LoadView::update(NodeIndex node, const NodeLoad& load) {
  NodeLoad& old = nodes_[node];
  const bool is_listed_elsewhere = old.role != load.role || old.is_ready != load.is_ready;
  old = load;
  if (is_listed_elsewhere) list_roles();
}

void LoadView::note_placed(NodeIndex prefill, uint64_t uncached_tokens, NodeIndex decode, uint64_t blocks) {
  NodeLoad& source = nodes_[prefill];
  source.queued_prefill_tokens += uncached_tokens;
  ++source.num_prefills;
  if (source.credits > 0) --source.credits;
  NodeLoad& target = nodes_[decode];
  target.private_free_blocks -= static_cast<uint32_t>(std::min<uint64_t>(blocks, target.private_free_blocks));
  ++target.num_decodes;
}

void LoadView::set_bad_pair(NodeIndex prefill, NodeIndex decode, bool is_bad) {
  if (!is_bad)
    bad_pairs_.erase(pair_key(prefill, decode));
  else if (bad_pairs_.size() < kMaxBadPairs)
    bad_pairs_.insert(pair_key(prefill, decode));
}

void LoadView::list_roles() {
  prefills_.clear();
  decodes_.clear();
  for (NodeIndex node = 0; node < nodes_.size(); ++node) {
    if (!nodes_[node].is_ready) continue;
    if (nodes_[node].role != Role::kDecode) prefills_.push_back(node);
    if (nodes_[node].role != Role::kPrefill) decodes_.push_back(node);
  }
}

}  // namespace tandem::router
