#pragma once
// TokenBudget: how many prompt tokens a step may still take. Two bounds: the step's cap, and, where others wait for the
// step's end, the largest chunk with which the predicted step stays inside the TPOT target. Others: decode rows, and
// tenants besides the one whose prompt it is.

#include <cstdint>

#include "serve/cost/step_cost.h"

namespace tandem::sched {

struct TokenBudget {
  uint32_t max_tokens = 0;  // prompt and decode tokens of a step
  double target_s = 0;      // 0: no target
  uint32_t min_chunk = 0;   // one chunk of this size always goes: prefill never starves behind a tight target

  // Of a sequence.
  struct Want {
    uint32_t begin = 0;         // position
    uint32_t count = 0;         // tokens to go
    bool has_neighbours = false;  // other tenants
  };

  // Tokens to compute next beside what is in `shape` already.
  uint32_t chunk(const cost::StepShape& shape, const cost::StepCost& cost, const Want& want) const;
};

}  // namespace tandem::sched
