#pragma once
// BlockPool: which KV blocks of a device are free, owned (by how many tables) or cached (owned by none, but in the
// prefix index and evictable, the longest unused first). free + cached + owned == total, always.
//
// Two parts, by count and not by place: of all blocks, `num_private` can never be charged to prefill, so that decode
// finds room to grow however many prompts arrive. Decode charges the private part first, then the shared part.
//
// Pure bookkeeping: no device memory, no lock. The engine thread owns it. Changes between begin() and accept() can be
// undone exactly, evictions included.

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sampling_params.h"
#include "serve/kv/block_id.h"
#include "serve/kv/prefix_index.h"

namespace tandem::kv {

enum class Part : uint8_t { kShared, kPrivate };

struct PoolShape {
  uint32_t num_blocks = 0;
  uint32_t num_private = 0;  // of num_blocks
  uint32_t block_size = 16;  // tokens, a multiple of 16
  uint64_t hash_mask = ~uint64_t{0};  // weakens the prefix hash, for tests
};

// The longest cached prefix of some tokens, in whole blocks.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  NodeId last = kRootNode;
};

class BlockPool {
 public:
  explicit BlockPool(const PoolShape& shape);

  // `count` blocks with one owner each, neighbours of `after` and of each other where there are such; evicts when the
  // free ones do not suffice. Nothing, and no change, when the part has no room.
  std::optional<std::vector<BlockId>> take(uint32_t count, Part part, std::optional<BlockId> after = std::nullopt);

  // One more owner of an owned or cached block. False, and no change, when the part has no room for it.
  bool share(BlockId block, Part part);

  // The block's only owner charges it to `part` from now on. False, and no change, when there are several owners, or
  // the part has no room.
  bool recharge(BlockId block, Part part);

  // One owner less. Without owners a published block stays as cached, another is free.
  void release(BlockId block);
  void release_all(std::span<const BlockId> blocks);  // the last first: heads of chains are evicted last

  PrefixMatch match(std::span<const TokenId> tokens, std::string_view salt, uint32_t max_blocks) const;

  // The owned block is computed and full: make it findable. See PrefixIndex::publish.
  std::optional<NodeId> publish(NodeId parent, std::string_view salt, std::span<const TokenId> tokens, BlockId block);

  // Drops every cached block and the whole index of unowned blocks.
  void drop_cache();

  // Undo: everything since begin(), or since a mark taken after it.
  void begin();
  size_t mark() const { return journal_.size(); }
  void undo_to(size_t mark);
  void accept();
  std::vector<BlockId> evicted() const;  // since begin()
  void uncache(BlockId block);  // out of the index, with all that is findable through it; nothing when not in there

  uint32_t num_available(Part part) const;  // free or evictable, chargeable to the part
  uint32_t num_blocks() const { return static_cast<uint32_t>(states_.size()); }
  uint32_t num_private() const { return num_private_; }
  uint32_t num_free() const { return num_free_; }
  uint32_t num_cached() const { return static_cast<uint32_t>(unused_.size()); }
  uint32_t num_owned() const { return charged_[0] + charged_[1]; }
  uint32_t num_charged(Part part) const { return charged_[static_cast<size_t>(part)]; }
  uint32_t num_owners(BlockId block) const { return states_[kv::index(block)].num_owners; }
  uint64_t num_evictions() const { return num_evictions_; }
  const PrefixIndex& prefix_index() const { return index_; }

  // Stops the process when broken. `owners[b]`: how many tables hold block b.
  void check_invariants(std::span<const uint32_t> owners) const;
  std::string dump() const;

 private:
  struct BlockState {
    uint32_t num_owners = 0;
    Part part = Part::kShared;  // while owned
    bool is_published = false;
    uint64_t last_use = 0;      // order of eviction
  };
  struct Change {
    BlockId block;
    BlockState before;
    std::optional<PrefixIndex::Removed> removed;
  };

  bool is_free(uint32_t b) const { return (free_bits_[b / 64] >> (b % 64)) & 1; }
  void set_state(BlockId block, const BlockState& state);
  void link(uint32_t b);
  void unlink(uint32_t b);
  Part charge_for(Part part) const;
  uint32_t room(Part part) const;
  void evict_one();
  void unpublish(BlockId block);
  uint32_t find_run(uint32_t count) const;
  uint32_t first_free(uint32_t from) const;

  uint32_t block_size_;
  uint32_t num_private_;
  std::vector<BlockState> states_;
  std::vector<uint64_t> free_bits_;
  uint32_t num_free_ = 0;
  uint32_t charged_[2] = {0, 0};  // by Part
  std::set<std::pair<uint64_t, uint32_t>> unused_;  // cached: (last use, block)
  PrefixIndex index_;
  uint64_t use_counter_ = 0;
  uint64_t use_counter_at_begin_ = 0;
  uint64_t num_evictions_ = 0;
  uint64_t num_evictions_at_begin_ = 0;
  bool is_journaling_ = false;
  std::vector<Change> journal_;
};

}  // namespace tandem::kv
