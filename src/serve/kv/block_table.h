#pragma once
// BlockTable: the KV blocks of one sequence, in the order of its positions.

#include <cstdint>
#include <span>
#include <vector>

#include "serve/kv/block_id.h"

namespace tandem::kv {

// How many blocks hold `num_tokens` positions.
constexpr uint32_t blocks_for(uint32_t num_tokens, uint32_t block_size) {
  return static_cast<uint32_t>((static_cast<uint64_t>(num_tokens) + block_size - 1) / block_size);
}

class BlockTable {
 public:
  void append(BlockId block) { blocks_.push_back(block); }
  void append(std::span<const BlockId> blocks) { blocks_.insert(blocks_.end(), blocks.begin(), blocks.end()); }
  void clear() { blocks_.clear(); }

  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  BlockId operator[](uint32_t block_index) const { return blocks_[block_index]; }
  std::span<const BlockId> blocks() const { return blocks_; }
  bool operator==(const BlockTable&) const = default;

 private:
  std::vector<BlockId> blocks_;
};

}  // namespace tandem::kv
