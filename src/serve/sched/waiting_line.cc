#include "serve/sched/waiting_line.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::sched {
namespace {

// Tenants that are gone keep their count for a while, so that leaving and coming back clears no debt.
constexpr size_t kMaxTenants = 1024;

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kHeld: return "held";
    case Phase::kWaiting: return "waiting";
    case Phase::kPrefill: return "prefill";
    case Phase::kDecode: return "decode";
    case Phase::kFinished: return "finished";
  }
  return "?";
}

bool LineOrder::operator()(const Sequence* a, const Sequence* b) const {
  if (a->progress.is_at_front != b->progress.is_at_front) return a->progress.is_at_front;
  if (a->progress.is_at_front) return RankOrder{}(a, b);
  if (a->line_key_ns != b->line_key_ns) return a->line_key_ns < b->line_key_ns;
  return RankOrder{}(a, b);
}

WaitingLine::Tenant& WaitingLine::tenant_of(const std::string& name) {
  const auto found = tenants_.find(name);
  TANDEM_CHECK(found != tenants_.end());
  return found->second;
}

void WaitingLine::link(Sequence& sequence) {
  const Phase phase = sequence.progress.phase;
  if (phase != Phase::kWaiting && phase != Phase::kPrefill) return;
  Tenant& tenant = tenant_of(sequence.request->request.tenant);
  if (phase == Phase::kPrefill) {
    TANDEM_CHECK(tenant.prefilling.insert(&sequence).second);
    return;
  }
  TANDEM_CHECK(tenant.waiting.insert(&sequence).second);
  arrivals_.emplace(sequence.request->arrival_ns, sequence.id);
  num_waiting_tokens_ += sequence.num_tokens();
}

void WaitingLine::unlink(Sequence& sequence) {
  const Phase phase = sequence.progress.phase;
  if (phase != Phase::kWaiting && phase != Phase::kPrefill) return;
  Tenant& tenant = tenant_of(sequence.request->request.tenant);
  if (phase == Phase::kPrefill) {
    TANDEM_CHECK(tenant.prefilling.erase(&sequence) == 1);
    return;
  }
  TANDEM_CHECK(tenant.waiting.erase(&sequence) == 1);
  arrivals_.erase({sequence.request->arrival_ns, sequence.id});
  num_waiting_tokens_ -= sequence.num_tokens();
}

void WaitingLine::enter(const std::string& name) {
  const auto [it, is_new] = tenants_.try_emplace(name);
  Tenant& tenant = it->second;
  if (is_new) {
    const auto weight = weights_.find(name);
    if (weight != weights_.end() && weight->second > 0) tenant.weight = weight->second;
  }
  if (tenant.num_present++ > 0) return;
  double level = 0;
  bool is_alone = true;
  for (const auto& [other_name, other] : tenants_) {
    if (&other == &tenant || other.num_present == 0) continue;
    level = is_alone ? other.served : std::min(level, other.served);
    is_alone = false;
  }
  if (!is_alone) tenant.served = std::max(tenant.served, level);
  forget_absent();
}

void WaitingLine::leave(const std::string& name) {
  Tenant& tenant = tenant_of(name);
  TANDEM_CHECK(tenant.num_present > 0);
  --tenant.num_present;
}

void WaitingLine::forget_absent() {
  while (tenants_.size() > kMaxTenants) {
    auto least = tenants_.end();
    for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
      if (it->second.num_present > 0) continue;
      if (least == tenants_.end() || it->second.served < least->second.served) least = it;
    }
    if (least == tenants_.end()) return;
    tenants_.erase(least);
  }
}

void WaitingLine::charge(const std::string& name, uint32_t tokens) {
  Tenant& tenant = tenant_of(name);
  charges_.emplace_back(name, tenant.served);
  tenant.served += tokens / tenant.weight;
}

void WaitingLine::undo_charges() {
  for (size_t i = charges_.size(); i-- > 0;) tenant_of(charges_[i].first).served = charges_[i].second;
  charges_.clear();
}

std::string WaitingLine::dump() const {
  std::string text;
  for (const auto& [name, tenant] : tenants_) {
    text += "  tenant '" + name + "' served=" + std::to_string(tenant.served) +
            " sequences=" + std::to_string(tenant.num_present) + " line:";
    for (const Ordered* ordered : {&tenant.prefilling, &tenant.waiting}) {
      for (const Sequence* s : *ordered) {
        text += " " + std::to_string(static_cast<uint64_t>(s->id)) + (s->progress.is_at_front ? "!" : "");
      }
      if (ordered == &tenant.prefilling) text += " |";
    }
    text += "\n";
  }
  return text;
}

LineWalk::LineWalk(WaitingLine& line, bool may_admit) : may_admit_(may_admit) {
  for (auto& [name, tenant] : line.tenants_) {
    if (tenant.waiting.empty() && tenant.prefilling.empty()) continue;
    cursors_.push_back({&tenant,
                        std::vector<Sequence*>(tenant.prefilling.begin(), tenant.prefilling.end()),
                        0,
                        tenant.waiting.begin()});
  }
}

Sequence* LineWalk::head(const Cursor& cursor) const {
  Sequence* under_way =
      cursor.next_prefilling < cursor.prefilling.size() ? cursor.prefilling[cursor.next_prefilling] : nullptr;
  if (!may_admit_ || cursor.next_waiting == cursor.tenant->waiting.end()) return under_way;
  Sequence* waiting = *cursor.next_waiting;
  return under_way && LineOrder{}(under_way, waiting) ? under_way : waiting;
}

void LineWalk::advance(Cursor& cursor, Sequence* taken) {
  if (cursor.next_prefilling < cursor.prefilling.size() && cursor.prefilling[cursor.next_prefilling] == taken) {
    ++cursor.next_prefilling;
  } else {
    ++cursor.next_waiting;
  }
}

Sequence* LineWalk::next() {
  Cursor* best = nullptr;
  Sequence* best_head = nullptr;
  for (Cursor& cursor : cursors_) {
    Sequence* candidate = head(cursor);
    if (!candidate) continue;
    bool is_better = !best_head;
    if (best_head) {
      const bool is_front = candidate->progress.is_at_front;
      if (is_front != best_head->progress.is_at_front) {
        is_better = is_front;
      } else if (is_front) {
        is_better = RankOrder{}(candidate, best_head);
      } else {
        is_better = cursor.tenant->served < best->tenant->served;
      }
    }
    if (!is_better) continue;
    best = &cursor;
    best_head = candidate;
  }
  if (best) advance(*best, best_head);
  return best_head;
}

}  // namespace tandem::sched
