#include "serve/engine/step_isolation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::engine {
namespace {

sched::Batch part_of(const sched::Batch& batch, size_t first, size_t count) {
  sched::Batch part;
  part.items.assign(batch.items.begin() + static_cast<ptrdiff_t>(first),
                    batch.items.begin() + static_cast<ptrdiff_t>(first + count));
  for (const sched::BatchItem& item : part.items) {
    part.num_tokens += item.count;
    // A copy goes with the item that reads it; no other item writes its target.
    for (const sched::BlockCopy& copy : batch.copies) {
      if (std::ranges::find(item.blocks, copy.to) != item.blocks.end()) part.copies.push_back(copy);
    }
  }
  return part;
}

void run_part(sched::StepExecutor& executor, const sched::Batch& batch, std::pair<size_t, size_t> range,
              std::vector<sched::ItemOutcome>& outcomes) {
  const auto [first, count] = range;
  auto ran = executor.execute(part_of(batch, first, count));
  if (ran && ran->items.size() == count) {
    std::ranges::move(ran->items, outcomes.begin() + static_cast<ptrdiff_t>(first));
    return;
  }
  if (count == 1) {
    std::string why = ran ? "the executor answered for another number of items" : ran.error().message;
    outcomes[first].error = Error{ErrorCode::kInternal, "computing this request failed: " + std::move(why)};
    return;
  }
  run_part(executor, batch, {first, count / 2}, outcomes);
  run_part(executor, batch, {first + count / 2, count - count / 2}, outcomes);
}

}  // namespace

sched::StepOutcome execute_isolated(sched::StepExecutor& executor, const sched::Batch& batch) {
  sched::StepOutcome outcome;
  outcome.items.resize(batch.items.size());
  run_part(executor, batch, {0, batch.items.size()}, outcome.items);
  return outcome;
}

}  // namespace tandem::engine
