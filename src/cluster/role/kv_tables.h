#pragma once
// KvTables: the KV blocks of one request on a node, and the blocks of a node by what they are reserved for.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/handoff/messages.h"
#include "serve/kv/block_pool.h"

namespace tandem::role {

// Blocks that the prompt fills are shared by the choices; the rest each has for itself (handoff/shape.h).
struct KvTables {
  std::vector<kv::BlockId> shared;
  std::vector<std::vector<kv::BlockId>> own;  // by choice

  bool is_empty() const;
  uint32_t size() const;
  // The block that holds `position` of the choice. It must be there.
  kv::BlockId at(uint32_t choice, uint32_t position, uint32_t block_size) const;
  kv::BlockId at(const handoff::HandoffShape& shape, uint32_t block_number) const;
};

// Positions [begin, begin + count) of one block.
struct Slots {
  kv::BlockId block{};
  uint32_t begin = 0, count = 0;
};
std::vector<Slots> slots_of(const KvTables& tables, uint32_t choice, uint32_t from, uint32_t count,
                            uint32_t block_size);

// Four budgets over one pool: the private part for decode (running and reserved), a bound on what holders pin, and the
// rest of the shared part for prefill and cache. A reservation is a count; its blocks are taken as they are needed, and
// are always there, because all reservations together never exceed the private part.
class KvStore {
 public:
  KvStore(const kv::PoolShape& shape, uint32_t max_pinned) : pool_(shape), shape_(shape), max_pinned_(max_pinned) {}

  // From here on publish() does nothing, so nothing is found.
  void disable_cache() { has_cache_ = false; }

  bool reserve(uint32_t num_blocks);
  void unreserve(uint32_t num_blocks);
  uint32_t reserved() const { return reserved_; }
  uint32_t num_private() const { return pool_.num_private(); }
  uint32_t num_shared() const { return pool_.num_blocks() - pool_.num_private(); }
  uint32_t max_pinned() const { return max_pinned_; }
  uint32_t block_size() const { return shape_.block_size; }

  // Makes `tables` hold the whole shape. False, and no change, without room.
  bool fit(KvTables& tables, const handoff::HandoffShape& shape, kv::Part part);
  bool append(KvTables& tables, uint32_t choice, kv::Part part);
  // The cached blocks of the prompt's start, at most `max_blocks`, into empty tables. They are only read from then on.
  void match(KvTables& tables, const std::vector<TokenId>& prompt, const std::string& salt, uint32_t max_blocks,
             kv::Part part);
  // Full, computed blocks of the first choice become findable: `num_positions` are computed.
  void publish(const KvTables& tables, const handoff::RequestState& state, uint32_t num_positions);
  // Cached blocks that nobody owns are free, and found no more.
  void drop_cache() { pool_.drop_cache(); }
  void charge_to_private(const KvTables& tables);
  void release(KvTables& tables);
  // Keeps of a choice's own blocks only those that hold its first `num_positions`, and of them none that the cache or
  // others read beyond that. Returns the positions that are left.
  uint32_t cut(KvTables& tables, uint32_t choice, uint32_t num_positions);

  // Where an engine computes beside the node, a step under way may still write to the blocks of a job that has just
  // been stopped. From here on, what is given back waits until that step has ended: seal() once the stop is with the
  // engine, naming the newest step that may not know of it, and flush() as steps end.
  void wait_for_steps() { waits_for_steps_ = true; }
  void seal(uint64_t newest_step);
  void flush(uint64_t num_ended);
  bool has_waiting() const { return !waiting_.empty() || !unsealed_.is_empty(); }
  // Adds one owner for each block that waits, by index.
  void count_waiting(std::vector<uint32_t>& owners) const;
  uint32_t num_unreserved_waiting() const;

  const kv::BlockPool& pool() const { return pool_; }

  struct TestOnly {  // rules left out
    bool has_no_budget = false, matches_any_content = false;
  };
  TestOnly test_only;

 private:
  struct GivenBack {
    std::vector<kv::BlockId> blocks;
    uint32_t reserved = 0;
    uint64_t newest_step = 0;
    bool is_empty() const { return blocks.empty() && reserved == 0; }
  };
  std::vector<TokenId> content(const std::vector<TokenId>& tokens) const;
  void give_back(std::span<const kv::BlockId> blocks);

  kv::BlockPool pool_;
  kv::PoolShape shape_;
  uint32_t max_pinned_;
  uint32_t reserved_ = 0;
  bool has_cache_ = true, waits_for_steps_ = false;
  GivenBack unsealed_;
  std::deque<GivenBack> waiting_;  // by step
};

}  // namespace tandem::role
