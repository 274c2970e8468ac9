#include "cluster/router/prefix_owners.h"

#include <algorithm>
#include <bit>

namespace tandem::router {

namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

std::vector<uint64_t> router_blocks(std::span<const TokenId> prompt, std::string_view salt) {
  uint64_t hash = mix(1, salt.size());
  for (const char c : salt) hash = mix(hash, static_cast<uint8_t>(c));
  std::vector<uint64_t> blocks(prompt.size() / kRouterBlockTokens);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (const TokenId token : prompt.subspan(b * kRouterBlockTokens, kRouterBlockTokens)) {
      hash = mix(hash, static_cast<uint32_t>(token));
    }
    blocks[b] = hash;
  }
  return blocks;
}

PrefixOwners::PrefixOwners(size_t num_blocks, uint64_t max_age)
    : entries_(std::bit_ceil(std::max(num_blocks, kWays))), max_age_(max_age) {}

bool PrefixOwners::is_valid(const Owner& owner) const {
  if (owner.used_at == 0 || counter_ - owner.used_at > max_age_) return false;
  return owner.node >= forgotten_at_.size() || owner.used_at > forgotten_at_[owner.node];
}

std::span<const PrefixOwners::Entry> PrefixOwners::set_of(uint64_t block) const {
  const size_t num_sets = entries_.size() / kWays;
  return std::span(entries_).subspan((block & (num_sets - 1)) * kWays, kWays);
}

const PrefixOwners::Entry* PrefixOwners::find_entry(uint64_t block) const {
  for (const Entry& entry : set_of(block)) {
    if (entry.used_at != 0 && entry.block == block) return &entry;
  }
  return nullptr;
}

// The block's own entry, or the one of its set used longest ago, emptied.
PrefixOwners::Entry& PrefixOwners::entry_for(uint64_t block) {
  const Entry* found = find_entry(block);
  if (found == nullptr) found = &*std::ranges::min_element(set_of(block), {}, &Entry::used_at);
  Entry& entry = entries_[static_cast<size_t>(found - entries_.data())];
  if (entry.used_at == 0 || entry.block != block) entry = Entry{block, 0, {}};
  return entry;
}

void PrefixOwners::note_placed(std::span<const uint64_t> blocks, NodeIndex node) {
  ++counter_;
  for (const uint64_t block : blocks) {
    Entry& entry = entry_for(block);
    entry.used_at = counter_;
    auto owner = std::ranges::find_if(entry.owners, [&](const Owner& o) { return o.used_at != 0 && o.node == node; });
    if (owner == entry.owners.end()) owner = std::ranges::min_element(entry.owners, {}, &Owner::used_at);
    *owner = {node, counter_};
  }
}

void PrefixOwners::forget(NodeIndex node) {
  if (node >= forgotten_at_.size()) forgotten_at_.resize(node + 1);
  forgotten_at_[node] = counter_;
}

PrefixOwners::Found PrefixOwners::find(std::span<const uint64_t> blocks) const {
  Found found;
  for (uint32_t depth = 0; depth < blocks.size(); ++depth) {
    const Entry* entry = find_entry(blocks[depth]);
    if (entry == nullptr) break;
    bool goes_on = false;
    for (const Owner& owner : entry->owners) {
      if (!is_valid(owner)) continue;
      if (depth == 0) found.owners[found.count++] = {owner.node, 0};
      for (PrefixOwner& f : std::span(found.owners).first(found.count)) {
        if (f.node != owner.node || f.num_blocks != depth) continue;
        f.num_blocks = depth + 1;
        goes_on = true;
      }
    }
    if (!goes_on) break;
  }
  return found;
}

size_t PrefixOwners::num_entries() const {
  return static_cast<size_t>(std::ranges::count_if(entries_, [](const Entry& e) { return e.used_at != 0; }));
}

}  // namespace tandem::router
