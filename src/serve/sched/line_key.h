#pragma once
// The order in which prompts are computed, in one process and on a node of a cluster.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::sched {

// What counts as so much later an arrival, so that every wait is bounded.
struct LinePenalty {
  double short_first_ms_per_token = 2;  // of the prompt
  double priority_step_ms = 10000;      // a level of priority
};

// Lower goes first. Stays far from overflow whatever the client's priority is.
inline int64_t line_key_ns(const LinePenalty& penalty, int64_t arrival_ns, size_t num_prompt_tokens,
                           int32_t priority) {
  const double penalty_ms = penalty.short_first_ms_per_token * static_cast<double>(num_prompt_tokens) +
                            penalty.priority_step_ms * static_cast<double>(priority);
  constexpr double kMostNs = 1e17;
  return arrival_ns + static_cast<int64_t>(std::clamp(penalty_ms * 1e6, -kMostNs, kMostNs));
}

}  // namespace tandem::sched
