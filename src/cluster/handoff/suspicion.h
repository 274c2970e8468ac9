#pragma once
// When a silent node counts as lost. The observer first doubts itself: its own stalls are subtracted, and when many
// busy sessions fall silent together it is the likelier cause.

#include <array>
#include <cstdint>

#include "cluster/handoff/ids.h"
#include "cluster/handoff/messages.h"
#include "cluster/handoff/timing.h"

namespace tandem::handoff {

// The gaps between a session's beats: T_suspect = clamp(2 x p99.9, min, max).
class BeatGaps {
 public:
  void heard(Nanos now);
  Nanos last_heard() const { return last_heard_; }
  Nanos suspect_after(const Timing& timing) const;

 private:
  static constexpr size_t kNumBuckets = 64;
  static constexpr Nanos kBucket = 10 * kMs;
  static constexpr uint32_t kForgetAt = 4000;  // gaps; then all counts are halved, so that old ones fade

  Nanos last_heard_ = 0;
  bool has_heard_ = false;
  uint32_t num_gaps_ = 0;
  std::array<uint32_t, kNumBuckets> counts_{};
};

// The observer's own loop: how long it did not look, at most, within a window that ends now.
class OwnStall {
 public:
  void looked(Nanos now);
  Nanos largest_since(Nanos since) const;  // the part of each stall before `since` does not count

 private:
  struct Gap {
    Nanos begin = 0, end = 0;
  };
  static constexpr size_t kNumGaps = 16;
  std::array<Gap, kNumGaps> gaps_{};  // those of 20 ms or more, the oldest is overwritten
  size_t next_ = 0;
  Nanos last_ = 0;
  bool has_looked_ = false;
};

// One session that is watched, as the blame rule sees it.
struct SilenceCount {
  uint32_t num_busy = 0, num_silent = 0;
};
// More than half of the busy sessions, and at least two, fell silent together: the observer blames itself.
constexpr bool is_own_fault(const SilenceCount& count) {
  return count.num_silent >= 2 && 2 * count.num_silent > count.num_busy;
}

// Beats come and the step does not end: the engine is stuck, though the process lives. `patience` is 1, or more where
// this was said before and proved wrong.
bool is_stuck(const Beat& beat, const Timing& timing, uint32_t patience = 1);

}  // namespace tandem::handoff
