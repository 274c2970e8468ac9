#include "cluster/handoff/source.h"

#include <utility>

namespace tandem::handoff {

Source::Source(Prefill prefill, const NodeRef& self, uint32_t block_size, uint32_t num_layer_groups, Nanos)
    : prefill_(std::move(prefill)),
      self_(self),
      shape_(shape_of(prefill_.state, block_size, num_layer_groups)),
      pushed_(shape_.num_parts()) {}

void Source::on_computed(uint32_t block, uint32_t layer_group, Actions& out) {
  const uint32_t part = block * shape_.num_layer_groups + layer_group;
  if (state_ != State::kPushing || part >= pushed_.size() || !pushed_.add(part)) return;
  if (is_local() || prefill_.have.has(part)) return;
  out.push_back(PushPart{prefill_.target, prefill_.landing, block, layer_group});
}

void Source::on_sampled(std::vector<TokenEntry> first, Nanos estimated_transfer, const Timing& timing, Nanos now,
                        Actions& out) {
  if (state_ != State::kPushing) return;
  first_ = std::move(first);
  for (TokenEntry& entry : first_) {
    entry.request = prefill_.request;
    entry.attempt = prefill_.attempt;
    out.push_back(ToGateway{First{entry}});
  }
  state_ = State::kAwaitAck;
  ack_deadline_ = now + 2 * estimated_transfer + timing.transfer_slack;
  if (!is_local()) out.push_back(ToPeer{prefill_.target, make_commit()});
}

Commit Source::make_commit() const {
  return {prefill_.request, prefill_.attempt, shape_.num_parts(), first_, prefill_.state};
}

void Source::on_commit_ack(Attempt attempt) {
  if (state_ == State::kAwaitAck && attempt == prefill_.attempt) state_ = State::kDone;
}

void Source::on_stale(const Stale& stale, Actions& out) {
  if (is_running() && stale.attempt == prefill_.attempt) fail(out);
}

void Source::on_connection_lost(const NodeRef& peer, Actions& out) {
  if (is_running() && !is_local() && peer == prefill_.target) fail(out);
}

void Source::on_tick(Nanos now, Actions& out) {
  if (state_ == State::kAwaitAck && now >= ack_deadline_) fail(out);
}

void Source::fail(Actions& out) {
  if (state_ == State::kPushing) out.push_back(AbortPrefill{});
  state_ = State::kFailed;
  out.push_back(ToGateway{XferFailed{prefill_.request, prefill_.attempt, prefill_.target}});
}

}  // namespace tandem::handoff
