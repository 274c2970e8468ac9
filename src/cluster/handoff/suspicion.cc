#include "cluster/handoff/suspicion.h"

#include <algorithm>

namespace tandem::handoff {

void BeatGaps::heard(Nanos now) {
  if (has_heard_ && now > last_heard_) {
    const auto bucket = static_cast<size_t>((now - last_heard_) / kBucket);
    ++counts_[std::min(bucket, kNumBuckets - 1)];
    if (++num_gaps_ >= kForgetAt) {
      num_gaps_ = 0;
      for (uint32_t& count : counts_) num_gaps_ += count /= 2;
    }
  }
  has_heard_ = true;
  last_heard_ = now;
}

Nanos BeatGaps::suspect_after(const Timing& timing) const {
  const uint32_t allowed_above = num_gaps_ / 1000;
  uint32_t above = 0;
  size_t bucket = kNumBuckets;
  while (bucket > 0 && above + counts_[bucket - 1] <= allowed_above) above += counts_[--bucket];
  const Nanos p999 = static_cast<Nanos>(bucket) * kBucket;  // the upper edge of its bucket
  return std::clamp(2 * p999, timing.suspect_min, timing.suspect_max);
}

void OwnStall::looked(Nanos now) {
  constexpr Nanos kShortest = 20 * kMs;
  if (has_looked_ && now - last_ >= kShortest) {
    gaps_[next_] = {last_, now};
    next_ = (next_ + 1) % kNumGaps;
  }
  has_looked_ = true;
  last_ = now;
}

Nanos OwnStall::largest_since(Nanos since) const {
  Nanos largest = 0;
  for (const Gap& gap : gaps_) largest = std::max(largest, gap.end - std::max(gap.begin, since));
  return largest;
}

bool is_stuck(const Beat& beat, const Timing& timing, uint32_t patience) {
  const Nanos running = beat.step_running_ms * kMs;
  return running > patience * std::max(timing.stuck_min, 5 * beat.step_predicted_ms * kMs);
}

}  // namespace tandem::handoff
