#include "serve/sched/waiting_line.h"

#include "base/check.h"

namespace tandem::sched {

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

WaitingLine::Lane& WaitingLine::lane_of(const Sequence& sequence) {
  const auto found = lanes_.find(sequence.request->request.tenant);
  TANDEM_CHECK(found != lanes_.end());
  return found->second;
}

void WaitingLine::link(Sequence& sequence) {
  const Phase phase = sequence.progress.phase;
  if (phase != Phase::kWaiting && phase != Phase::kPrefill) return;
  Lane& lane = lane_of(sequence);
  if (phase == Phase::kPrefill) {
    TANDEM_CHECK(lane.prefilling.insert(&sequence).second);
    return;
  }
  TANDEM_CHECK(lane.waiting.insert(&sequence).second);
  arrivals_.emplace(sequence.request->arrival_ns, sequence.id);
  num_waiting_tokens_ += sequence.num_tokens();
}

void WaitingLine::unlink(Sequence& sequence) {
  const Phase phase = sequence.progress.phase;
  if (phase != Phase::kWaiting && phase != Phase::kPrefill) return;
  Lane& lane = lane_of(sequence);
  if (phase == Phase::kPrefill) {
    TANDEM_CHECK(lane.prefilling.erase(&sequence) == 1);
    return;
  }
  TANDEM_CHECK(lane.waiting.erase(&sequence) == 1);
  arrivals_.erase({sequence.request->arrival_ns, sequence.id});
  num_waiting_tokens_ -= sequence.num_tokens();
}

void WaitingLine::enter(const std::string& tenant) {
  shares_.enter(tenant);
  lanes_.try_emplace(tenant);
}

void WaitingLine::leave(const std::string& tenant) {
  shares_.leave(tenant);
  if (shares_.of(tenant).num_present == 0) lanes_.erase(tenant);
}

void WaitingLine::charge(const std::string& tenant, uint32_t tokens) {
  charges_.emplace_back(tenant, shares_.of(tenant).served);
  shares_.charge(tenant, tokens);
}

void WaitingLine::undo_charges() {
  for (size_t i = charges_.size(); i-- > 0;) shares_.set_served(charges_[i].first, charges_[i].second);
  charges_.clear();
}

std::string WaitingLine::dump() const {
  static const Lane kEmpty;
  std::string text;
  for (const auto& [name, tenant] : shares_.all()) {
    const auto found = lanes_.find(name);
    const Lane& lane = found == lanes_.end() ? kEmpty : found->second;
    text += "  tenant '" + name + "' served=" + std::to_string(tenant.served) +
            " sequences=" + std::to_string(tenant.num_present) + " line:";
    for (const Ordered* ordered : {&lane.prefilling, &lane.waiting}) {
      for (const Sequence* s : *ordered) {
        text += " " + std::to_string(static_cast<uint64_t>(s->id)) + (s->progress.is_at_front ? "!" : "");
      }
      if (ordered == &lane.prefilling) text += " |";
    }
    text += "\n";
  }
  return text;
}

LineWalk::LineWalk(WaitingLine& line, bool may_admit) : may_admit_(may_admit) {
  for (const auto& [name, lane] : line.lanes_) {
    if (lane.waiting.empty() && lane.prefilling.empty()) continue;
    Cursor& cursor = cursors_.emplace_back();
    cursor.tenant = &line.shares_.of(name);
    cursor.lane = &lane;
    cursor.prefilling.assign(lane.prefilling.begin(), lane.prefilling.end());
    cursor.next_waiting = lane.waiting.begin();
  }
}

Sequence* LineWalk::head(const Cursor& cursor) const {
  Sequence* under_way =
      cursor.next_prefilling < cursor.prefilling.size() ? cursor.prefilling[cursor.next_prefilling] : nullptr;
  const bool may_admit = may_admit_ && !cursor.is_stopped;
  if (!may_admit || cursor.next_waiting == cursor.lane->waiting.end()) return under_way;
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
        is_better = cursor.tenant->goes_before(*best->tenant);
      }
    }
    if (!is_better) continue;
    best = &cursor;
    best_head = candidate;
  }
  last_ = best;
  if (best) advance(*best, best_head);
  return best_head;
}

}  // namespace tandem::sched
