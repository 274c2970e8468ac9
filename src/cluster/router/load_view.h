#pragma once
// LoadView: what a gateway knows of its nodes' load, from their beats, plus what it has placed since. Plain state: no
// clock, no sockets. One thread.

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "cluster/handoff/messages.h"

namespace tandem::router {

using NodeIndex = uint32_t;  // a node's place in the view; stays the same while the view lives

// Of one node. What a beat says replaces what note_placed() added.
struct NodeLoad {
  handoff::Role role = handoff::Role::kMixed;
  bool is_ready = false;               // has an open session; neither draining, suspect nor gone
  double weight = 1;                   // ramp-up: from 0.1 for a node that has just come to 1
  uint32_t fingerprint = 0;            // nodes with equal numbers can hand KV over to each other
  uint32_t credits = 0;                // first attempts that the node still takes as a prefill
  double prefill_tokens_per_s = 1;     // over 0
  uint64_t queued_prefill_tokens = 0;  // to be computed before a new prompt
  uint32_t num_prefills = 0, num_decodes = 0;
  uint32_t block_size = 16;           // tokens of a KV block
  uint32_t private_total_blocks = 0;  // of the pool's private part
  uint32_t private_free_blocks = 0;   // neither used nor reserved
};

// Blocks of the private part that a target sets aside: the prompt and each choice at its predicted length, as
// HandoffShape counts them. Full blocks of the prompt are there once, the rest once for each choice.
uint64_t blocks_to_reserve(uint64_t prompt_tokens, uint64_t final_tokens, uint64_t num_choices, uint64_t block_size);

class LoadView {
 public:
  static constexpr size_t kMaxBadPairs = 4096;  // more are not remembered: choosing must stay cheap

  NodeIndex add(const NodeLoad& load);
  // O(1), but O(nodes) when the role or the readiness changes.
  void update(NodeIndex node, const NodeLoad& load);
  // A request went there; the next beats know it.
  void note_placed(NodeIndex prefill, uint64_t uncached_tokens, NodeIndex decode, uint64_t blocks);

  // (source, target) whose transfer failed lately.
  void set_bad_pair(NodeIndex prefill, NodeIndex decode, bool is_bad);
  bool is_bad_pair(NodeIndex prefill, NodeIndex decode) const {
    return !bad_pairs_.empty() && bad_pairs_.contains(pair_key(prefill, decode));
  }

  const NodeLoad& load(NodeIndex node) const { return nodes_[node]; }
  size_t size() const { return nodes_.size(); }
  // Ready nodes that may take the role; a mixed node is in both. In the order of their indices.
  std::span<const NodeIndex> prefills() const { return prefills_; }
  std::span<const NodeIndex> decodes() const { return decodes_; }

 private:
  static uint64_t pair_key(NodeIndex prefill, NodeIndex decode) { return uint64_t{prefill} << 32 | decode; }
  void list_roles();

  std::vector<NodeLoad> nodes_;
  std::vector<NodeIndex> prefills_, decodes_;
  std::unordered_set<uint64_t> bad_pairs_;
};

}  // namespace tandem::router
