#include "serve/kv/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tandem::kv {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

PrefixIndex::PrefixIndex(uint32_t num_blocks, uint32_t block_size, uint64_t hash_mask)
    : block_size_(block_size),
      hash_mask_(hash_mask),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * block_size),
      buckets_(std::bit_ceil(std::max(num_blocks, 1u)), kNone) {}

std::span<const TokenId> PrefixIndex::tokens(BlockId block) const {
  return {tokens_.data() + static_cast<size_t>(index(block)) * block_size_, block_size_};
}

bool PrefixIndex::is_alive(NodeId node) const {
  return node == kRootNode || entries_[node.block].generation == node.generation;
}

uint64_t PrefixIndex::hash_of(NodeId parent, std::string_view salt, std::span<const TokenId> tokens) const {
  uint64_t hash = mix(parent.generation, parent.block);
  if (parent == kRootNode) {
    for (const char c : salt) hash = mix(hash, static_cast<uint8_t>(c));
  }
  for (const TokenId token : tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return hash & hash_mask_;
}

std::optional<NodeId> PrefixIndex::find(NodeId parent, std::string_view salt, std::span<const TokenId> ids) const {
  TANDEM_CHECK(ids.size() == block_size_);
  if (!is_alive(parent)) return std::nullopt;
  const uint64_t hash = hash_of(parent, salt, ids);
  for (uint32_t b = buckets_[hash & (buckets_.size() - 1)]; b != kNone; b = entries_[b].next_in_bucket) {
    const Entry& entry = entries_[b];
    if (entry.hash != hash || entry.parent != parent) continue;
    if (parent == kRootNode && entry.salt != salt) continue;
    if (std::ranges::equal(tokens(BlockId{b}), ids)) return NodeId{b, entry.generation};
  }
  return std::nullopt;
}

std::optional<NodeId> PrefixIndex::publish(NodeId parent, std::string_view salt, std::span<const TokenId> ids,
                                           BlockId block) {
  if (!is_alive(parent)) return std::nullopt;
  if (auto present = find(parent, salt, ids)) return present;
  // A block is in at most one place, and its place follows from its content: it cannot be under another node.
  TANDEM_CHECK(!contains(block));
  const uint64_t generation = next_generation_++;
  insert({block, parent, generation, parent == kRootNode ? std::string(salt) : std::string(),
          std::vector<TokenId>(ids.begin(), ids.end())});
  return NodeId{index(block), generation};
}

void PrefixIndex::insert(const Removed& node) {
  const uint32_t b = index(node.block);
  Entry& entry = entries_[b];
  TANDEM_CHECK(entry.generation == 0 && is_alive(node.parent));
  entry.generation = node.generation;
  entry.parent = node.parent;
  entry.salt = node.salt;
  entry.hash = hash_of(node.parent, node.salt, node.tokens);
  std::ranges::copy(node.tokens, tokens_.begin() + static_cast<ptrdiff_t>(b) * block_size_);
  uint32_t& bucket = buckets_[entry.hash & (buckets_.size() - 1)];
  entry.next_in_bucket = bucket;
  bucket = b;
  entry.first_child = kNone;
  entry.next_sibling = kNone;
  if (node.parent != kRootNode) {
    entry.next_sibling = entries_[node.parent.block].first_child;
    entries_[node.parent.block].first_child = b;
  }
  ++size_;
}

PrefixIndex::Removed PrefixIndex::remove_leaf(uint32_t b) {
  Entry& entry = entries_[b];
  uint32_t* link = &buckets_[entry.hash & (buckets_.size() - 1)];
  while (*link != b) link = &entries_[*link].next_in_bucket;
  *link = entry.next_in_bucket;
  if (entry.parent != kRootNode) {
    uint32_t* sibling = &entries_[entry.parent.block].first_child;
    while (*sibling != b) sibling = &entries_[*sibling].next_sibling;
    *sibling = entry.next_sibling;
  }
  const std::span<const TokenId> ids = tokens(BlockId{b});
  Removed removed{BlockId{b}, entry.parent, entry.generation, std::move(entry.salt), {ids.begin(), ids.end()}};
  entry = Entry{};
  --size_;
  return removed;
}

std::vector<PrefixIndex::Removed> PrefixIndex::remove(BlockId block) {
  TANDEM_CHECK(contains(block));
  std::vector<Removed> removed;
  std::vector<uint32_t> path = {index(block)};
  while (!path.empty()) {
    const uint32_t b = path.back();
    if (entries_[b].first_child != kNone) {
      path.push_back(entries_[b].first_child);
      continue;
    }
    removed.push_back(remove_leaf(b));
    path.pop_back();
  }
  return removed;
}

void PrefixIndex::restore(const Removed& removed) { insert(removed); }

void PrefixIndex::check_invariants() const {
  uint32_t num_alive = 0;
  uint32_t num_children = 0;
  for (uint32_t b = 0; b < entries_.size(); ++b) {
    const Entry& entry = entries_[b];
    if (entry.generation == 0) continue;
    ++num_alive;
    TANDEM_CHECK(is_alive(entry.parent));
    const auto found = find(entry.parent, entry.salt, tokens(BlockId{b}));
    TANDEM_CHECK(found && found->block == b);
    for (uint32_t child = entry.first_child; child != kNone; child = entries_[child].next_sibling) {
      TANDEM_CHECK((entries_[child].parent == NodeId{b, entry.generation}));
      ++num_children;
    }
    if (entry.parent == kRootNode) ++num_children;
  }
  TANDEM_CHECK(num_alive == size_ && num_children == size_);
}

}  // namespace tandem::kv
