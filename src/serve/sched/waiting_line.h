#pragma once
// WaitingLine: the sequences that have tokens to prefill, and who goes next.
//
// Within a tenant by virtual arrival: the time of arrival plus a penalty for each prompt token and priority level.
// Short and urgent requests overtake, but only those that arrived less than the penalty later, so nothing starves.
// Between tenants the one that got the fewest tokens by weight goes first; one that comes back starts at most a step's
// worth ahead of the others and has no further claim on the time it was away. Sequences at the front (preempted, forks)
// go before all.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/tenant_shares.h"
#include "serve/sched/sequence.h"

namespace tandem::sched {

struct LineOrder {
  bool operator()(const Sequence* a, const Sequence* b) const;
};

class WaitingLine {
 public:
  // tenant_start: tokens that a tenant which comes back may get before it is level with the others.
  WaitingLine(std::map<std::string, double> tenant_weights, double tenant_start)
      : shares_(std::move(tenant_weights), tenant_start) {}

  // A sequence is in the line while its phase is kWaiting or kPrefill. Take it out before changing its progress, and
  // put it back after.
  void link(Sequence& sequence);
  void unlink(Sequence& sequence);

  // A tenant's sequences, whatever their phase: it counts as present while it has any.
  void enter(const std::string& tenant);
  void leave(const std::string& tenant);

  // The tenant got `tokens`. Charges made since the last accept() can be undone.
  void charge(const std::string& tenant, uint32_t tokens);
  void undo_charges();
  void accept_charges() { charges_.clear(); }
  uint32_t num_tenants() const { return shares_.num_present(); }

  uint32_t num_waiting() const { return static_cast<uint32_t>(arrivals_.size()); }
  uint64_t num_waiting_tokens() const { return num_waiting_tokens_; }
  int64_t oldest_arrival_ns() const { return arrivals_.begin()->first; }  // num_waiting() > 0
  std::string dump() const;

 private:
  friend class LineWalk;
  using Ordered = std::set<Sequence*, LineOrder>;
  struct Lane {  // of a tenant that is present
    Ordered waiting;
    Ordered prefilling;
  };

  Lane& lane_of(const Sequence& sequence);

  TenantShares shares_;  // in tokens
  std::map<std::string, Lane> lanes_;
  std::set<std::pair<int64_t, SequenceId>> arrivals_;  // of the waiting
  uint64_t num_waiting_tokens_ = 0;
  std::vector<std::pair<std::string, double>> charges_;  // tenant, served before
};

// Goes through the line once, in order. The sequence last returned may be moved in the line; charges count at once.
class LineWalk {
 public:
  LineWalk(WaitingLine& line, bool may_admit);

  Sequence* next();  // null at the end
  void stop_admission() { may_admit_ = false; }  // only sequences that are under way come from here on
  void stop_tenant() { last_->is_stopped = true; }  // the same of the tenant whose sequence came last
  bool may_admit() const { return may_admit_; }

 private:
  struct Cursor {
    const TenantShares::Tenant* tenant;
    const WaitingLine::Lane* lane;
    std::vector<Sequence*> prefilling;  // a copy: admitted ones join the set during the walk
    size_t next_prefilling = 0;
    WaitingLine::Ordered::const_iterator next_waiting;
    bool is_stopped = false;
  };
  Sequence* head(const Cursor& cursor) const;
  void advance(Cursor& cursor, Sequence* taken);

  bool may_admit_;
  std::vector<Cursor> cursors_;
  Cursor* last_ = nullptr;
};

}  // namespace tandem::sched
