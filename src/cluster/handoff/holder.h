#pragma once
// Holder: a pinned copy of a request's KV, kept for the case that its target is lost: the source's own, or one that a
// target's mirror builds up. It is what makes recovery short, and what the next turn finds in the prefix cache.
//
// KV is told apart by its tokens: a prefix is used only as far as the ids are equal.

#include <cstdint>
#include <vector>

#include "cluster/handoff/actions.h"

namespace tandem::handoff {

class Holder {
 public:
  // `held[c]`: positions of choice c whose KV is here.
  Holder(RequestId request, uint32_t num_choices) : request_(request), held_(num_choices, 0), tokens_(num_choices) {}

  // A Prefill or Hold of this attempt: what is held of other tokens is forgotten. False: a newer attempt has it.
  bool pin(Attempt attempt, const RequestState& state);
  // Of a choice no more than so many positions can be used: their block is gone, or is read by others.
  void limit(uint32_t choice, uint32_t positions) {
    if (positions >= held_[choice]) return;
    held_[choice] = positions;
    tokens_[choice].resize(positions > prompt_.size() ? positions - prompt_.size() : 0);
  }
  // The source's prefill has computed all of `state`.
  void computed(const RequestState& state);

  // `has_job`: a prefill of the request runs here, so its blocks are the job's.
  void on_mirror(const Mirror& frame, bool has_job, const NodeRef& from, Actions& out);
  void on_release(Attempt upto) {
    if (attempt_ <= upto) attempt_ = 0;
  }
  // Over its budget: the request goes unprotected. The KV may stay as plain cache.
  void unpin() { attempt_ = 0; }

  bool is_pinned() const { return attempt_ != 0; }
  Attempt attempt() const { return attempt_; }
  uint32_t held(uint32_t choice) const { return held_[choice]; }
  uint32_t num_choices() const { return static_cast<uint32_t>(held_.size()); }
  // Whose KV is held at position `p`: a prompt's token or one of the choice's.
  const std::vector<TokenId>& prompt() const { return prompt_; }
  const std::vector<TokenId>& tokens(uint32_t choice) const { return tokens_[choice]; }

 private:
  RequestId request_;
  Attempt attempt_ = 0;
  std::vector<TokenId> prompt_;
  std::vector<uint32_t> held_;
  std::vector<std::vector<TokenId>> tokens_;  // of the held positions after the prompt
};

}  // namespace tandem::handoff
