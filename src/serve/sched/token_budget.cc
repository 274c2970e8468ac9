#include "serve/sched/token_budget.h"

#include <algorithm>

namespace tandem::sched {

uint32_t TokenBudget::chunk(const cost::StepShape& shape, const cost::StepCost& cost, const Want& want) const {
  const uint64_t planned = shape.num_prefill_tokens + shape.num_decode_rows;
  const auto room = static_cast<uint32_t>(planned < max_tokens ? max_tokens - planned : 0);
  const uint32_t most = std::min(want.count, room);
  const bool is_awaited = shape.num_decode_rows > 0 || want.has_neighbours;
  if (target_s <= 0 || !is_awaited || !cost.is_ready()) return most;

  const auto fits = [&](uint32_t count) {
    cost::StepShape longer = shape;
    longer.add_prefill(want.begin, count);
    return cost.predict(longer) <= target_s;
  };
  uint32_t low = 0;
  uint32_t high = most;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const uint32_t least = shape.num_prefill_tokens == 0 ? std::min(most, min_chunk) : 0;
  return std::max(low, least);
}

}  // namespace tandem::sched
