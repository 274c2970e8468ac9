#include "plugins/cpu/team_sizer.h"

#include <algorithm>

namespace tandem::cpu {
namespace {

// Longer than a few turns of a busy neighbour (a scheduler's time slice is 3-4 ms): one interruption is no reason.
constexpr int64_t kWindowNs = 20'000'000;
// A trial costs less when it is short, but has to outlast the turn that a woken thread gets at once.
constexpr int64_t kTrialNs = 8'000'000;
// An undecided trial ends after this long, and so many comparable runs.
constexpr int64_t kLongTrialNs = 60'000'000;
constexpr int64_t kComparableRuns = 2;
// Parts of the number of members. Beside one busy thread a team of two has half.
constexpr double kPoorRate = 0.625, kGoodRate = 0.8;
// A larger team's rate below this many times the smaller one's cannot pay; without comparable runs it has to reach the
// second, since members that share a memory slow each other.
constexpr double kRateNeeded = 1.1, kRateEnough = 1.8;
// Faster by this, measured, is worth another core.
constexpr double kSpeedNeeded = 1.03;
// After a failed trial the settled size stays for so many times what the trial lost; this part of its time when no
// runs can be compared.
constexpr double kLossMultiple = 50, kUnknownLoss = 0.5;
constexpr int64_t kHoldMinNs = 100'000'000, kHoldMaxNs = 2'000'000'000;

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

TeamSizer::TeamSizer(uint32_t num_members)
    : num_members_(num_members), size_(num_members), settled_size_(num_members) {}

void TeamSizer::Window::add(const RunSample& sample) {
  wall_ns += sample.wall_ns;
  worked_ns += sample.worked_ns;
  for (Tally& tally : tallies) {
    if (tally.num_runs > 0 && tally.kind != sample.kind) continue;
    tally.kind = sample.kind;
    ++tally.num_runs;
    tally.wall_ns += sample.wall_ns;
    return;
  }
}

// How much faster `window` does the work that both did; 0 when that is fewer runs than asked for.
double TeamSizer::speed_ratio(const Window& window, const Window& other, int64_t min_runs) {
  double window_ns = 0, other_ns = 0;
  int64_t num_runs = 0;
  for (const Tally& a : window.tallies) {
    for (const Tally& b : other.tallies) {
      if (a.num_runs == 0 || b.num_runs == 0 || a.kind != b.kind) continue;
      const int64_t runs = std::min(a.num_runs, b.num_runs);
      num_runs += runs;
      window_ns += static_cast<double>(runs * a.wall_ns) / static_cast<double>(a.num_runs);
      other_ns += static_cast<double>(runs * b.wall_ns) / static_cast<double>(b.num_runs);
    }
  }
  return num_runs < min_runs ? 0 : ratio(other_ns, window_ns);
}

TeamSizer::Verdict TeamSizer::judge_trial() const {
  if (window_.wall_ns < kTrialNs) return Verdict::kOpen;
  const bool is_larger = size_ > settled_size_;
  const Window& larger = is_larger ? window_ : settled_;
  const Window& smaller = is_larger ? settled_ : window_;
  const double rate_ratio = ratio(larger.rate(), smaller.rate());
  if (larger.rate() >= kGoodRate * std::max(size_, settled_size_)) return Verdict::kLarger;
  if (rate_ratio < kRateNeeded) return Verdict::kSmaller;
  if (window_.wall_ns < kLongTrialNs) return Verdict::kOpen;
  const double speed = speed_ratio(larger, smaller, kComparableRuns);
  const bool is_larger_better = speed > 0 ? speed >= kSpeedNeeded : rate_ratio >= kRateEnough;
  return is_larger_better ? Verdict::kLarger : Verdict::kSmaller;
}

void TeamSizer::begin_trial(uint32_t size) {
  is_trying_ = true;
  settled_ = window_;
  size_ = size;
  window_ = {};
}

void TeamSizer::finish_trial(bool is_won, int64_t now_ns) {
  is_trying_ = false;
  double lost_ns = 0;
  if (is_won) {
    settled_size_ = size_;
  } else {
    const double speed = speed_ratio(window_, settled_, 1);
    const double lost_part = speed > 0 ? std::clamp(1 - speed, 0.0, 1.0) : kUnknownLoss;
    lost_ns = static_cast<double>(window_.wall_ns) * lost_part;
    size_ = settled_size_;
  }
  next_trial_ns_ = now_ns + std::clamp(static_cast<int64_t>(kLossMultiple * lost_ns), kHoldMinNs, kHoldMaxNs);
  window_ = {};
}

void TeamSizer::add(const RunSample& sample) {
  if (num_members_ == 1 || sample.kind == 0 || sample.wall_ns <= 0) return;
  window_.add(sample);
  if (is_trying_) {
    const Verdict verdict = judge_trial();
    if (verdict != Verdict::kOpen) {
      finish_trial((verdict == Verdict::kLarger) == (size_ > settled_size_), sample.end_ns);
    }
    return;
  }
  if (window_.wall_ns < kWindowNs) return;
  const bool is_due = sample.end_ns >= next_trial_ns_;
  if (is_due && size_ > 1 && window_.rate() < kPoorRate * size_) return begin_trial(size_ / 2);
  if (is_due && size_ < num_members_) return begin_trial(std::min(num_members_, size_ * 2));
  // A reduced team's window grows until the next trial; a full team's starts anew, to be of the time just past.
  if (size_ == num_members_) window_ = {};
}

}  // namespace tandem::cpu
