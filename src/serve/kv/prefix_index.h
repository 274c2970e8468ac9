#pragma once
// PrefixIndex: from content to the KV block that holds it. A tree: a node is one full block of token ids under its
// parent; the children of the root also carry the cache salt.
//
// Matching compares the ids, the parent and the salt; the hash only finds where to look. Bookkeeping only, no lock;
// BlockPool owns it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sampling_params.h"
#include "serve/kv/block_id.h"

namespace tandem::kv {

// A node of the tree. The generation is never used twice, so an id that outlives its node matches nothing.
struct NodeId {
  uint32_t block = UINT32_MAX;
  uint64_t generation = 0;
  bool operator==(const NodeId&) const = default;
};
constexpr NodeId kRootNode{};

class PrefixIndex {
 public:
  // All of a removed node, to put it back.
  struct Removed {
    BlockId block;
    NodeId parent;
    uint64_t generation;
    std::string salt;
    std::vector<TokenId> tokens;
  };

  // `hash_mask` weakens the hash, for tests of collisions.
  PrefixIndex(uint32_t num_blocks, uint32_t block_size, uint64_t hash_mask = ~uint64_t{0});

  // The child of `parent` with exactly these `block_size` ids. The salt counts below the root only.
  std::optional<NodeId> find(NodeId parent, std::string_view salt, std::span<const TokenId> tokens) const;

  // Makes `block` findable. Returns the node with this content: an older one when it is there already (then `block`
  // stays unpublished). Nothing when `parent` is gone. Call only when the block's KV is computed.
  std::optional<NodeId> publish(NodeId parent, std::string_view salt, std::span<const TokenId> tokens, BlockId block);

  // Removes the block's node and all below it, which nobody could find any more; the lowest first.
  std::vector<Removed> remove(BlockId block);
  void restore(const Removed& removed);  // in the opposite order

  bool contains(BlockId block) const { return entries_[index(block)].generation != 0; }
  std::span<const TokenId> tokens(BlockId block) const;
  uint32_t size() const { return size_; }

  void check_invariants() const;  // stops the process when broken

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {  // of one block
    uint64_t generation = 0;  // 0: not in the tree
    NodeId parent;
    uint64_t hash = 0;
    uint32_t next_in_bucket = kNone;
    uint32_t first_child = kNone;
    uint32_t next_sibling = kNone;
    std::string salt;
  };

  bool is_alive(NodeId node) const;
  uint64_t hash_of(NodeId parent, std::string_view salt, std::span<const TokenId> tokens) const;
  void insert(const Removed& node);
  Removed remove_leaf(uint32_t block);

  uint32_t block_size_;
  uint64_t hash_mask_;
  uint64_t next_generation_ = 1;
  uint32_t size_ = 0;
  std::vector<Entry> entries_;   // by block
  std::vector<TokenId> tokens_;  // by block, block_size_ each
  std::vector<uint32_t> buckets_;
};

}  // namespace tandem::kv
