#pragma once
// TokenJudge: which tokens the client gets. Each index once and in order; what comes again is compared, because with
// equal numerics it must be the same.

#include <cstdint>
#include <vector>

#include "cluster/handoff/messages.h"

namespace tandem::handoff {

enum class Verdict : uint8_t {
  kEmit,
  kRepeated,  // known, and the same
  kMismatch,  // known, and another: tandem_token_mismatch_total
  kGap,       // an index that cannot come: the stream is ordered and starts at the committed index
};

class TokenJudge {
 public:
  explicit TokenJudge(uint32_t num_choices) : choices_(num_choices) {}

  // The entry's session and attempt are current; that is the caller's check.
  Verdict judge(const TokenEntry& entry) {
    if (entry.choice >= choices_.size()) return Verdict::kGap;
    ChoiceState& choice = choices_[entry.choice];
    if (entry.index < choice.tokens.size()) {
      return choice.tokens[entry.index] == entry.token ? Verdict::kRepeated : Verdict::kMismatch;
    }
    if (entry.index > choice.tokens.size() || choice.is_finished) return Verdict::kGap;
    choice.tokens.push_back(entry.token);
    choice.is_finished = entry.finish != Finish::kNone;
    return Verdict::kEmit;
  }

  bool is_finished() const {
    for (const ChoiceState& choice : choices_) {
      if (!choice.is_finished) return false;
    }
    return true;
  }
  bool has_any() const {
    for (const ChoiceState& choice : choices_) {
      if (!choice.tokens.empty()) return true;
    }
    return false;
  }
  const std::vector<ChoiceState>& choices() const { return choices_; }

 private:
  std::vector<ChoiceState> choices_;
};

}  // namespace tandem::handoff
