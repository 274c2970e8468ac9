#pragma once
// Finds out which items of a failing batch make it fail, by running ever smaller parts of it. Engine thread.

#include "serve/sched/batch.h"

namespace tandem::engine {

// The outcomes of all items: those that ran, and an error for each that fails even alone.
sched::StepOutcome execute_isolated(sched::StepExecutor& executor, const sched::Batch& batch);

}  // namespace tandem::engine
