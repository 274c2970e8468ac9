#include "cluster/role/kv_tables.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::role {

using kv::BlockId;
using kv::Part;

bool KvTables::is_empty() const { return size() == 0; }

uint32_t KvTables::size() const {
  size_t size = shared.size();
  for (const auto& blocks : own) size += blocks.size();
  return static_cast<uint32_t>(size);
}

BlockId KvTables::at(uint32_t choice, uint32_t position, uint32_t block_size) const {
  const size_t index = position / block_size;
  return index < shared.size() ? shared[index] : own[choice].at(index - shared.size());
}

BlockId KvTables::at(const handoff::HandoffShape& shape, uint32_t block_number) const {
  const handoff::BlockPlace place = handoff::place_of(shape, block_number);
  return place.is_shared ? shared.at(place.index) : own.at(place.choice).at(place.index);
}

std::vector<Slots> slots_of(const KvTables& tables, uint32_t choice, uint32_t from, uint32_t count,
                            uint32_t block_size) {
  std::vector<Slots> slots;
  for (const uint32_t end = from + count; from < end;) {
    const uint32_t offset = from % block_size;
    const uint32_t here = std::min(block_size - offset, end - from);
    slots.push_back({tables.at(choice, from, block_size), offset, here});
    from += here;
  }
  return slots;
}

bool KvStore::reserve(uint32_t num_blocks) {
  if (!test_only.has_no_budget && reserved_ + num_blocks > num_private()) return false;
  reserved_ += num_blocks;
  return true;
}

bool KvStore::fit(KvTables& tables, const handoff::HandoffShape& shape, Part part) {
  tables.own.resize(shape.num_choices());
  const auto missing = [&](uint32_t c) {
    const uint32_t num_own = shape.num_own(c);
    return num_own > tables.own[c].size() ? num_own - static_cast<uint32_t>(tables.own[c].size()) : 0;
  };
  const auto num_shared = static_cast<uint32_t>(tables.shared.size());
  uint32_t wanted = shape.num_shared() > num_shared ? shape.num_shared() - num_shared : 0;
  for (uint32_t c = 0; c < shape.num_choices(); ++c) wanted += missing(c);
  const auto taken = pool_.take(wanted, part);
  if (!taken) return false;
  auto next = taken->begin();
  while (tables.shared.size() < shape.num_shared()) tables.shared.push_back(*next++);
  for (uint32_t c = 0; c < shape.num_choices(); ++c) {
    while (missing(c) > 0) tables.own[c].push_back(*next++);
  }
  return true;
}

bool KvStore::append(KvTables& tables, uint32_t choice, Part part) {
  const auto taken = pool_.take(1, part);
  if (taken) tables.own[choice].push_back(taken->front());
  return taken.has_value();
}

std::vector<TokenId> KvStore::content(const std::vector<TokenId>& tokens) const {
  return test_only.matches_any_content ? std::vector<TokenId>(tokens.size(), 0) : tokens;
}

void KvStore::match(KvTables& tables, const std::vector<TokenId>& prompt, const std::string& salt, uint32_t max_blocks,
                    Part part) {
  if (!tables.is_empty()) return;
  for (const BlockId block : pool_.match(content(prompt), salt, max_blocks).blocks) {
    if (!pool_.share(block, part)) break;
    tables.shared.push_back(block);
  }
}

void KvStore::publish(const KvTables& tables, const handoff::RequestState& state, uint32_t num_positions) {
  if (!has_cache_) return;
  std::vector<TokenId> chain = state.prompt;
  chain.insert(chain.end(), state.choices[0].tokens.begin(), state.choices[0].tokens.end());
  chain = content(chain);
  kv::NodeId parent = kv::kRootNode;
  const uint32_t size = block_size();
  num_positions = std::min(num_positions, static_cast<uint32_t>(chain.size()));
  for (uint32_t begin = 0; begin + size <= num_positions; begin += size) {
    const size_t index = begin / size;
    if (index >= tables.shared.size() + tables.own[0].size()) return;
    const auto node = pool_.publish(parent, state.cache_salt, std::span(chain).subspan(begin, size),
                                    tables.at(0, begin, size));
    if (!node) return;
    parent = *node;
  }
}

void KvStore::charge_to_private(const KvTables& tables) {
  // What a prompt's block shares with other prompts stays charged to the shared part.
  for (const BlockId block : tables.shared) pool_.recharge(block, Part::kPrivate);
  for (const auto& blocks : tables.own) {
    for (const BlockId block : blocks) pool_.recharge(block, Part::kPrivate);
  }
}

void KvStore::unreserve(uint32_t num_blocks) {
  if (waits_for_steps_) {
    unsealed_.reserved += num_blocks;
  } else {
    reserved_ -= num_blocks;
  }
}

void KvStore::give_back(std::span<const BlockId> blocks) {
  if (waits_for_steps_) {
    unsealed_.blocks.insert(unsealed_.blocks.end(), blocks.rbegin(), blocks.rend());  // the last first
  } else {
    pool_.release_all(blocks);
  }
}

void KvStore::seal(uint64_t newest_step) {
  if (unsealed_.is_empty()) return;
  unsealed_.newest_step = newest_step;
  waiting_.push_back(std::exchange(unsealed_, {}));
}

void KvStore::flush(uint64_t num_ended) {
  while (!waiting_.empty() && waiting_.front().newest_step <= num_ended) {
    for (const BlockId block : waiting_.front().blocks) pool_.release(block);
    reserved_ -= waiting_.front().reserved;
    waiting_.pop_front();
  }
}

void KvStore::count_waiting(std::vector<uint32_t>& owners) const {
  const auto count = [&owners](const GivenBack& given) {
    for (const BlockId block : given.blocks) ++owners[kv::index(block)];
  };
  count(unsealed_);
  for (const GivenBack& given : waiting_) count(given);
}

uint32_t KvStore::num_unreserved_waiting() const {
  uint32_t sum = unsealed_.reserved;
  for (const GivenBack& given : waiting_) sum += given.reserved;
  return sum;
}

void KvStore::release(KvTables& tables) {
  for (const auto& blocks : tables.own) give_back(blocks);
  give_back(tables.shared);
  tables = {};
}

uint32_t KvStore::cut(KvTables& tables, uint32_t choice, uint32_t num_positions) {
  const uint32_t size = block_size();
  auto& own = tables.own[choice];
  const auto num_shared = static_cast<uint32_t>(tables.shared.size());
  if (num_positions < num_shared * size) {  // the shared blocks are cut by the caller, for all choices at once
    give_back(own);
    own.clear();
    return num_positions;
  }
  uint32_t keep = (num_positions + size - 1) / size - num_shared;
  if (num_positions % size != 0 && keep > 0 && keep <= own.size()) {
    const BlockId last = own[keep - 1];
    const bool is_read_by_others = pool_.prefix_index().contains(last) || pool_.num_owners(last) > 1;
    if (is_read_by_others) {
      --keep;
      num_positions = (num_shared + keep) * size;
    }
  }
  while (own.size() > keep) {
    give_back({&own.back(), 1});
    own.pop_back();
  }
  return std::min(num_positions, (num_shared + static_cast<uint32_t>(own.size())) * size);
}

}  // namespace tandem::role
