#pragma once
// TokenMask: says from the tokens so far which one may come next, for a choice that has to fit a grammar.
//
// Abstract here, implemented in serve/text, so that neither the scheduler nor the runner needs a tokenizer. One per
// choice; engine thread. Its state is a function of the committed tokens: whoever commits the same goes on the same.

#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/sampling_params.h"

namespace tandem::sched {

// An error ends the request that has it, and no other; after one, only destroy the mask.
class TokenMask {
 public:
  virtual ~TokenMask() = default;

  // Bit (id % 32) of word (id / 32) for each token that may come next; what lies beyond the last word may not. Valid
  // until commit(). Called again before that, as when a step is run again, it gives the same and costs nothing.
  // Executors call it once the step is on its way, so that a device that computes by itself does not wait for it.
  virtual Result<std::span<const uint32_t>> allowed() = 0;

  // allowed() would not wait for anything, as for a compilation on another thread. Who shares a step with others asks
  // first, and leaves the choice out of the step.
  virtual bool is_ready() const { return true; }

  // Takes in the token that came.
  virtual Status commit(TokenId token) = 0;

  // Nothing may follow what was committed: the choice ends, whatever else would keep it going.
  virtual bool is_over() const = 0;
};

inline bool is_allowed(std::span<const uint32_t> mask, TokenId token) {
  const auto id = static_cast<uint32_t>(token);
  return id / 32 < mask.size() && (mask[id / 32] >> (id % 32) & 1) != 0;
}

}  // namespace tandem::sched
