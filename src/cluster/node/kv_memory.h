#pragma once
// KvMemory: the bytes of a node's KV pool, as the data plane moves them. What a part or a slot looks like is the
// device's business; two nodes with one fingerprint agree on it.

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "serve/kv/block_id.h"

namespace tandem::node {

// Called by the node's I/O thread while the engine computes: neither side touches what the other does. Parts are read
// once they are computed, written before they are used; of the block that a decode is writing to, only the slots before
// the one under way are read.
class KvMemory {
 public:
  virtual ~KvMemory() = default;

  // One block's layers of one group.
  virtual uint32_t part_bytes() const = 0;
  virtual Status read_part(kv::BlockId block, uint32_t layer_group, std::byte* to) = 0;
  virtual Status write_part(kv::BlockId block, uint32_t layer_group, const std::byte* from) = 0;

  // Positions [begin, begin + count) of one block, all layers: count * slot_bytes(). Exactly these bytes.
  virtual uint32_t slot_bytes() const = 0;
  virtual Status read_slots(kv::BlockId block, uint32_t begin, uint32_t count, std::byte* to) = 0;
  virtual Status write_slots(kv::BlockId block, uint32_t begin, uint32_t count, const std::byte* from) = 0;
};

}  // namespace tandem::node
