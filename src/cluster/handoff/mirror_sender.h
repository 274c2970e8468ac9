#pragma once
// MirrorSender: the target's side of the mirror. Keeps per choice how far the holder is; frames merge under back-
// pressure, because at most two are in flight and the next takes everything since. Best effort, off the step's path.

#include <cstdint>
#include <vector>

#include "cluster/handoff/actions.h"

namespace tandem::handoff {

class MirrorSender {
 public:
  static constexpr uint32_t kMaxInFlight = 2;  // frames, over all choices
  static constexpr uint32_t kMaxFrame = 64;    // positions: a frame that gives way is not long in the others' way

  // `upto[c]`: positions that the holder has by then. `written[c]`: those whose KV the target has; frames that bring
  // the holder there only catch up.
  void start(const NodeRef& holder, std::vector<uint32_t> upto, std::vector<uint32_t> written);
  void stop() { is_on_ = false; }

  void on_ack(const NodeRef& from, const MirrorAck& ack);
  // `written[c]`: positions whose KV the target has. `tokens_at` gives the token at a position.
  template <class TokenAt>
  void poll(RequestId request, Attempt attempt, const std::vector<uint32_t>& written, TokenAt tokens_at, Actions& out) {
    for (uint32_t c = 0; is_on_ && c < acked_.size(); ++c) {
      while (in_flight_ < kMaxInFlight && (sent_[c] < written[c] || is_probe_due_[c])) {
        const uint32_t end = is_probe_due_[c] ? sent_[c] : std::min(written[c], sent_[c] + kMaxFrame);
        is_probe_due_[c] = 0;
        Mirror frame{request, attempt, c, sent_[c], {}, {}};
        for (uint32_t p = sent_[c]; p < end; ++p) frame.tokens.push_back(tokens_at(c, p));
        out.push_back(SendMirror{holder_, std::move(frame), acked_[c] < catch_up_end_[c]});
        sent_[c] = end;
        ++in_flight_;
      }
    }
  }

  bool is_on() const { return is_on_; }
  const NodeRef& holder() const { return holder_; }
  uint32_t lag(const std::vector<uint32_t>& written) const;

 private:
  bool is_on_ = false;
  NodeRef holder_;
  uint32_t in_flight_ = 0;
  std::vector<uint32_t> acked_, sent_, catch_up_end_;
  std::vector<uint8_t> is_probe_due_;  // the first frame to a new holder asks how far it is
};

}  // namespace tandem::handoff
