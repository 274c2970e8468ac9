#pragma once
// BlockId: index of one KV block (16 tokens by default) in a device's pool. Not a position, not a count.

#include <cstdint>

namespace tandem::kv {

enum class BlockId : uint32_t {};

constexpr uint32_t index(BlockId block) { return static_cast<uint32_t>(block); }

}  // namespace tandem::kv
