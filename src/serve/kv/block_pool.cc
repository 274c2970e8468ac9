#include "serve/kv/block_pool.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tandem::kv {
namespace {

constexpr uint32_t kNoBlock = UINT32_MAX;

}  // namespace

BlockPool::BlockPool(const PoolShape& shape)
    : block_size_(shape.block_size),
      num_private_(shape.num_private),
      states_(shape.num_blocks),
      free_bits_((shape.num_blocks + 63) / 64, 0),
      index_(shape.num_blocks, shape.block_size, shape.hash_mask) {
  TANDEM_CHECK(shape.block_size > 0 && shape.num_private <= shape.num_blocks);
  for (uint32_t b = 0; b < shape.num_blocks; ++b) link(b);
}

// The free bits, the eviction order, the counts and the charges all follow from the block's state.
void BlockPool::link(uint32_t b) {
  const BlockState& state = states_[b];
  if (state.num_owners > 0) {
    ++charged_[static_cast<size_t>(state.part)];
  } else if (state.is_published) {
    unused_.emplace(state.last_use, b);
  } else {
    free_bits_[b / 64] |= uint64_t{1} << (b % 64);
    ++num_free_;
  }
}

void BlockPool::unlink(uint32_t b) {
  const BlockState& state = states_[b];
  if (state.num_owners > 0) {
    --charged_[static_cast<size_t>(state.part)];
  } else if (state.is_published) {
    unused_.erase({state.last_use, b});
  } else {
    free_bits_[b / 64] &= ~(uint64_t{1} << (b % 64));
    --num_free_;
  }
}

void BlockPool::set_state(BlockId block, const BlockState& state) {
  const uint32_t b = kv::index(block);
  if (is_journaling_) journal_.push_back({block, states_[b], std::nullopt});
  unlink(b);
  states_[b] = state;
  link(b);
}

uint32_t BlockPool::room(Part part) const {
  const uint32_t size = part == Part::kPrivate ? num_private_ : num_blocks() - num_private_;
  return size - charged_[static_cast<size_t>(part)];
}

uint32_t BlockPool::num_available(Part part) const {
  return room(Part::kShared) + (part == Part::kPrivate ? room(Part::kPrivate) : 0);
}

Part BlockPool::charge_for(Part part) const {
  return part == Part::kPrivate && room(Part::kPrivate) > 0 ? Part::kPrivate : Part::kShared;
}

void BlockPool::unpublish(BlockId block) {
  for (PrefixIndex::Removed& removed : index_.remove(block)) {
    BlockState state = states_[kv::index(removed.block)];
    state.is_published = false;
    const BlockId at = removed.block;
    set_state(at, state);
    if (is_journaling_) journal_.back().removed = std::move(removed);
  }
}

void BlockPool::evict_one() {
  TANDEM_CHECK(!unused_.empty());
  unpublish(BlockId{unused_.begin()->second});
  ++num_evictions_;
}

uint32_t BlockPool::first_free(uint32_t from) const {
  for (uint32_t word = from / 64; word < free_bits_.size(); ++word) {
    uint64_t bits = free_bits_[word];
    if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
    if (bits != 0) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
  }
  return kNoBlock;
}

// The first of `count` neighbouring free blocks, or where free blocks begin when there is no such run.
uint32_t BlockPool::find_run(uint32_t count) const {
  const uint32_t lowest = first_free(0);
  for (uint32_t start = lowest; start != kNoBlock;) {
    uint32_t end = start + 1;
    while (end < num_blocks() && end - start < count && is_free(end)) ++end;
    if (end - start == count) return start;
    start = end < num_blocks() ? first_free(end) : kNoBlock;
  }
  return lowest;
}

std::optional<std::vector<BlockId>> BlockPool::take(uint32_t count, Part part, std::optional<BlockId> after) {
  if (num_available(part) < count) return std::nullopt;
  while (num_free_ < count) evict_one();
  std::vector<BlockId> taken;
  taken.reserve(count);
  uint32_t next = after ? kv::index(*after) + 1 : kNoBlock;
  while (taken.size() < count) {
    if (next >= num_blocks() || !is_free(next)) next = find_run(count - static_cast<uint32_t>(taken.size()));
    const BlockId block{next++};
    BlockState state;
    state.num_owners = 1;
    state.part = charge_for(part);
    set_state(block, state);
    taken.push_back(block);
  }
  return taken;
}

bool BlockPool::share(BlockId block, Part part) {
  BlockState state = states_[kv::index(block)];
  if (state.num_owners == 0) {
    TANDEM_CHECK(state.is_published);
    if (num_available(part) == 0) return false;
    state.part = charge_for(part);
  } else if (part == Part::kShared && state.part == Part::kPrivate) {
    // Its decode owner may go first, and then a prompt would sit in the private part.
    if (room(Part::kShared) == 0) return false;
    state.part = Part::kShared;
  }
  ++state.num_owners;
  set_state(block, state);
  return true;
}

bool BlockPool::recharge(BlockId block, Part part) {
  BlockState state = states_[kv::index(block)];
  if (state.part == part && state.num_owners == 1) return true;
  if (state.num_owners != 1 || room(part) == 0) return false;
  state.part = part;
  set_state(block, state);
  return true;
}

void BlockPool::release(BlockId block) {
  BlockState state = states_[kv::index(block)];
  TANDEM_CHECK(state.num_owners > 0);
  if (--state.num_owners == 0) state.last_use = ++use_counter_;
  set_state(block, state);
}

void BlockPool::release_all(std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) release(blocks[i]);
}

PrefixMatch BlockPool::match(std::span<const TokenId> tokens, std::string_view salt, uint32_t max_blocks) const {
  PrefixMatch match;
  while (match.blocks.size() < max_blocks && (match.blocks.size() + 1) * block_size_ <= tokens.size()) {
    const auto node = index_.find(match.last, salt, tokens.subspan(match.blocks.size() * block_size_, block_size_));
    if (!node) break;
    match.blocks.push_back(BlockId{node->block});
    match.last = *node;
  }
  return match;
}

std::optional<NodeId> BlockPool::publish(NodeId parent, std::string_view salt, std::span<const TokenId> tokens,
                                         BlockId block) {
  TANDEM_CHECK(!is_journaling_);  // publishing follows a step that succeeded; there is nothing to undo
  TANDEM_CHECK(states_[kv::index(block)].num_owners > 0);
  const auto node = index_.publish(parent, salt, tokens, block);
  if (node && node->block == kv::index(block)) {
    BlockState state = states_[node->block];
    state.is_published = true;
    set_state(block, state);
  }
  return node;
}

void BlockPool::drop_cache() {
  while (!unused_.empty()) evict_one();
}

std::vector<BlockId> BlockPool::evicted() const {
  std::vector<BlockId> blocks;
  for (const Change& change : journal_) {
    if (change.removed) blocks.push_back(change.block);
  }
  return blocks;
}

void BlockPool::uncache(BlockId block) {
  if (index_.contains(block)) unpublish(block);
}

void BlockPool::begin() {
  TANDEM_CHECK(!is_journaling_ && journal_.empty());
  is_journaling_ = true;
  use_counter_at_begin_ = use_counter_;
  num_evictions_at_begin_ = num_evictions_;
}

void BlockPool::undo_to(size_t mark) {
  TANDEM_CHECK(is_journaling_ && mark <= journal_.size());
  while (journal_.size() > mark) {
    const Change& change = journal_.back();
    const uint32_t b = kv::index(change.block);
    unlink(b);
    states_[b] = change.before;
    if (change.removed) index_.restore(*change.removed);
    link(b);
    journal_.pop_back();
  }
  if (mark == 0) {
    use_counter_ = use_counter_at_begin_;
    num_evictions_ = num_evictions_at_begin_;
  }
}

void BlockPool::accept() {
  TANDEM_CHECK(is_journaling_);
  is_journaling_ = false;
  journal_.clear();
}

void BlockPool::check_invariants(std::span<const uint32_t> owners) const {
  TANDEM_CHECK(owners.size() == states_.size());
  uint32_t num_free = 0;
  uint32_t num_cached = 0;
  uint32_t charged[2] = {0, 0};
  for (uint32_t b = 0; b < num_blocks(); ++b) {
    const BlockState& state = states_[b];
    TANDEM_CHECK(state.num_owners == owners[b]);
    TANDEM_CHECK(state.is_published == index_.contains(BlockId{b}));
    const bool is_unowned = state.num_owners == 0;
    TANDEM_CHECK(is_free(b) == (is_unowned && !state.is_published));
    TANDEM_CHECK(unused_.contains({state.last_use, b}) == (is_unowned && state.is_published));
    num_free += is_free(b);
    num_cached += is_unowned && state.is_published;
    if (!is_unowned) ++charged[static_cast<size_t>(state.part)];
  }
  TANDEM_CHECK(num_free == num_free_ && num_cached == unused_.size());
  TANDEM_CHECK(charged[0] == charged_[0] && charged[1] == charged_[1]);
  TANDEM_CHECK(num_free + num_cached + charged[0] + charged[1] == num_blocks());
  TANDEM_CHECK(charged[0] <= num_blocks() - num_private_ && charged[1] <= num_private_);
  index_.check_invariants();
}

std::string BlockPool::dump() const {
  std::string text = "kv: blocks=" + std::to_string(num_blocks()) + " private=" + std::to_string(num_private_) +
                     " free=" + std::to_string(num_free_) + " cached=" + std::to_string(num_cached()) +
                     " owned=" + std::to_string(num_owned()) +
                     " charged_shared=" + std::to_string(charged_[0]) +
                     " charged_private=" + std::to_string(charged_[1]) +
                     " indexed=" + std::to_string(index_.size()) + "\n  evict next:";
  for (const auto& [last_use, b] : unused_) text += " " + std::to_string(b);
  text += "\n  owned:";
  for (uint32_t b = 0; b < num_blocks(); ++b) {
    const BlockState& state = states_[b];
    if (state.num_owners == 0) continue;
    text += " " + std::to_string(b) + "x" + std::to_string(state.num_owners);
    text += state.part == Part::kPrivate ? "p" : "";
    text += state.is_published ? "*" : "";
  }
  return text + "\n";
}

}  // namespace tandem::kv
