#include "cluster/handoff/holder.h"

#include <algorithm>

namespace tandem::handoff {
namespace {

uint32_t equal_prefix(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<uint32_t>(end - a.begin());
}

}  // namespace

bool Holder::pin(Attempt attempt, const RequestState& state) {
  if (attempt_ >= attempt || state.choices.size() != held_.size()) return false;
  attempt_ = attempt;
  const uint32_t prompt = equal_prefix(prompt_, state.prompt);
  const bool has_whole_prompt = prompt == state.prompt.size() && prompt == prompt_.size();
  for (uint32_t c = 0; c < held_.size(); ++c) {
    const uint32_t tail = has_whole_prompt ? equal_prefix(tokens_[c], state.choices[c].tokens) : 0;
    held_[c] = std::min(held_[c], prompt + tail);
    tokens_[c].resize(held_[c] > prompt ? held_[c] - prompt : 0);
  }
  prompt_ = state.prompt;
  return true;
}

void Holder::computed(const RequestState& state) {
  for (uint32_t c = 0; c < held_.size(); ++c) {
    if (state.choices[c].is_finished) continue;
    tokens_[c] = state.choices[c].tokens;
    held_[c] = static_cast<uint32_t>(state.prompt.size() + tokens_[c].size());
  }
}

void Holder::on_mirror(const Mirror& frame, bool has_job, const NodeRef& from, Actions& out) {
  if (frame.attempt < attempt_) {
    out.push_back(ToPeer{from, Stale{request_, frame.attempt, attempt_}});
    return;
  }
  if (frame.attempt > attempt_ || frame.choice >= held_.size()) {  // its Hold has not come, or never will
    out.push_back(ToPeer{from, MirrorStop{request_, frame.attempt}});
    return;
  }
  uint32_t& held = held_[frame.choice];
  if (!has_job && frame.from_position == held && !frame.tokens.empty()) {
    out.push_back(AppendMirror{frame.choice, held, frame.tokens, frame.payload});
    for (const TokenId token : frame.tokens) {
      if (held >= prompt_.size()) tokens_[frame.choice].push_back(token);
      ++held;
    }
  }
  out.push_back(ToPeer{from, MirrorAck{request_, frame.attempt, frame.choice, held}});
}

}  // namespace tandem::handoff
