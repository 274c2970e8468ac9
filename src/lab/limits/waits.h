#pragma once
// What it costs threads to wait for each other: a barrier that spins, and a futex wake of one that sleeps.

#include <cstdint>
#include <vector>

namespace tandem::limits {

// Seconds per barrier of `num_threads` bound threads that spin, one value a repetition (of 1000 barriers).
std::vector<double> barrier_times(uint32_t num_threads, uint32_t num_repetitions);

// Seconds from a futex wake to the woken thread's first look, one value a wake. The sleeper, on another core where
// there is one, has slept for about `asleep_s` before.
std::vector<double> wake_times(double asleep_s, uint32_t num_repetitions);

}  // namespace tandem::limits
