#pragma once
// WorkShares: the work items of one op, cut into a share per member. A member takes the items of its own share first,
// which nobody else touches as long as all are busy: no cache line moves between cores, and the bytes that its items
// read from memory lie one behind the other. Then it takes what others have left, so that a slow or interrupted member
// holds up no more than the item it has in hand.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace tandem::cpu {

class WorkShares {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit WorkShares(uint32_t max_members) : shares_(std::make_unique<Share[]>(max_members)) {}

  // The share of `member` among num_members. No one may take until all are set, with a barrier between.
  void set(uint32_t member, uint32_t num_members, uint32_t num_items) {
    Share& share = shares_[member];
    share.next.store(bound(member, num_members, num_items), std::memory_order_relaxed);
    share.end = bound(member + 1, num_members, num_items);
  }

  // The item of its own share that `member` gets next, when nobody takes it first, or kNone.
  uint32_t peek(uint32_t member) const {
    const uint32_t next = shares_[member].next.load(std::memory_order_relaxed);
    return next < shares_[member].end ? next : kNone;
  }
  // The first item of a share.
  static uint32_t first(uint32_t member, uint32_t num_members, uint32_t num_items) {
    return bound(member, num_members, num_items);
  }

  // An item that nobody else gets, or kNone when all are taken.
  uint32_t take(uint32_t member, uint32_t num_members) {
    for (uint32_t i = 0; i < num_members; ++i) {
      const uint32_t owner = member + i < num_members ? member + i : member + i - num_members;
      Share& share = shares_[owner];
      if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
      const uint32_t item = share.next.fetch_add(1, std::memory_order_relaxed);
      if (item < share.end) return item;
    }
    return kNone;
  }

 private:
  struct alignas(64) Share {
    std::atomic<uint32_t> next{0};
    uint32_t end = 0;
  };
  static uint32_t bound(uint32_t member, uint32_t num_members, uint32_t num_items) {
    return static_cast<uint32_t>(uint64_t{num_items} * member / num_members);
  }

  std::unique_ptr<Share[]> shares_;
};

}  // namespace tandem::cpu
