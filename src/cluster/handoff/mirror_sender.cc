#include "cluster/handoff/mirror_sender.h"

#include <algorithm>
#include <utility>

namespace tandem::handoff {

void MirrorSender::start(const NodeRef& holder, std::vector<uint32_t> upto, std::vector<uint32_t> written) {
  is_on_ = true;
  holder_ = holder;
  in_flight_ = 0;
  sent_ = acked_ = std::move(upto);
  catch_up_end_ = std::move(written);
  is_probe_due_.assign(acked_.size(), 1);
}

void MirrorSender::on_ack(const NodeRef& from, const MirrorAck& ack) {
  if (!is_on_ || from != holder_ || ack.choice >= acked_.size()) return;
  if (in_flight_ > 0) --in_flight_;
  acked_[ack.choice] = ack.upto;
  // The holder takes frames in order only. What it lacks is sent again once nothing is under way that could be it.
  if (in_flight_ == 0) sent_ = acked_;
}

uint32_t MirrorSender::lag(const std::vector<uint32_t>& written) const {
  uint32_t largest = 0;
  for (uint32_t c = 0; c < acked_.size(); ++c) {
    largest = std::max(largest, written[c] - std::min(written[c], acked_[c]));
  }
  return largest;
}

}  // namespace tandem::handoff
