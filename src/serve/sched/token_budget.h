#pragma once
// TokenBudget: how many prompt tokens a step may still take. Two bounds: the step's cap, and, beside decode rows, the
// largest chunk with which the predicted step stays inside the TPOT target.

#include <cstdint>

#include "serve/cost/step_cost.h"

namespace tandem::sched {

struct TokenBudget {
  uint32_t max_tokens = 0;  // prompt and decode tokens of a step
  double target_s = 0;      // 0: no target
  uint32_t min_chunk = 0;   // one chunk of this size always goes: prefill never starves behind a tight target

  // Tokens to compute next of a sequence with `want` to go from position `begin`, beside what is in `shape` already.
  uint32_t chunk(const cost::StepShape& shape, const cost::StepCost& cost, uint32_t begin, uint32_t want) const;
};

}  // namespace tandem::sched
