#pragma once
// PrefixOwners: which prefill nodes probably hold a prompt's prefix, in router blocks of 512 tokens. A guess from what
// was placed, in bounded memory: an entry that is gone, too old or wrong costs time at the node, never a wrong token,
// for the node compares the ids itself. Age is counted in placements, so there is no clock. One thread.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/sampling_params.h"
#include "cluster/router/load_view.h"

namespace tandem::router {

constexpr uint32_t kRouterBlockTokens = 512;

// One hash a full router block, each over the salt and all tokens up to the block's end.
std::vector<uint64_t> router_blocks(std::span<const TokenId> prompt, std::string_view salt);

struct PrefixOwner {
  NodeIndex node = 0;
  uint32_t num_blocks = 0;  // of the prefix, from its start
};

class PrefixOwners {
 public:
  static constexpr size_t kMaxOwners = 4;  // of a block; the one used longest ago makes room

  // Room for at least `num_blocks` (rounded up to a power of two), all allocated here. Owners that `max_age`
  // placements have not touched are forgotten.
  PrefixOwners(size_t num_blocks, uint64_t max_age);

  // `node` computes or already holds all these blocks.
  void note_placed(std::span<const uint64_t> blocks, NodeIndex node);
  // Its cache is gone: restarted, or flipped to another role.
  void forget(NodeIndex node);

  struct Found {
    std::array<PrefixOwner, kMaxOwners> owners;
    size_t count = 0;
  };
  // Owners of the first block, each with how far it holds the prefix without a gap.
  Found find(std::span<const uint64_t> blocks) const;

  size_t num_entries() const;  // with any owner, aged or not; at most the room. O(room)
  size_t capacity() const { return entries_.size(); }

 private:
  static constexpr size_t kWays = 8;
  struct Owner {
    NodeIndex node = 0;
    uint64_t used_at = 0;  // 0: none
  };
  struct Entry {
    uint64_t block = 0, used_at = 0;  // 0: empty
    std::array<Owner, kMaxOwners> owners;
  };
  bool is_valid(const Owner& owner) const;
  std::span<const Entry> set_of(uint64_t block) const;
  const Entry* find_entry(uint64_t block) const;
  Entry& entry_for(uint64_t block);

  std::vector<Entry> entries_;          // sets of kWays
  std::vector<uint64_t> forgotten_at_;  // by node: what it owned until then is gone
  uint64_t max_age_, counter_ = 0;
};

}  // namespace tandem::router
