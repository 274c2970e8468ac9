#pragma once
// TeamSizer: how many members of a team should work, on a machine that others use too.
//
// A member that shares its core leaves the others waiting at each barrier: two members beside one busy thread get less
// done than one alone. What tells is the *rate* of a run: the time that members worked (were on a core and did not wait
// for each other) over the time that passed. A full team on cores of its own comes close to its number of members. When
// the rate is poor, a smaller team is tried for a moment, the better of the two is kept for a while, and then the other
// is tried again. What a failed trial has cost decides how long that while is, so that trials take a bounded part of
// all time.
//
// The rate is an upper bound of what a larger team gains: members slow each other at memory. So where rates do not
// decide, durations of runs that do equal work are compared.
//
// Pure: no clock, no threads. Which size works changes no result, since members take work items from counters.

#include <array>
#include <cstdint>

namespace tandem::cpu {

// One run of the team, as measured. Times of one monotonic clock.
struct RunSample {
  int64_t end_ns = 0;     // when it ended
  int64_t wall_ns = 0;    // how long it took
  int64_t worked_ns = 0;  // time on a core less time spent waiting, summed over the members that took part
  uint64_t kind = 0;      // runs of one kind do equal work; 0: one that waits for other things too, and is not counted
};

class TeamSizer {
 public:
  explicit TeamSizer(uint32_t num_members);

  // Members that should take part in the next run: 1 .. num_members.
  uint32_t num_active() const { return size_; }

  // A run of num_active() members.
  void add(const RunSample& sample);

 private:
  // Runs of one kind, in a window.
  struct Tally {
    uint64_t kind = 0;
    int64_t num_runs = 0, wall_ns = 0;
  };
  // What one size did, of late.
  struct Window {
    int64_t wall_ns = 0, worked_ns = 0;
    std::array<Tally, 8> tallies{};  // further kinds are not told apart from absent ones

    void add(const RunSample& sample);
    double rate() const { return wall_ns == 0 ? 0 : static_cast<double>(worked_ns) / static_cast<double>(wall_ns); }
  };
  enum class Verdict { kOpen, kLarger, kSmaller };

  static double speed_ratio(const Window& window, const Window& other, int64_t min_runs);
  Verdict judge_trial() const;
  void begin_trial(uint32_t size);
  void finish_trial(bool is_won, int64_t now_ns);

  const uint32_t num_members_;
  uint32_t size_;               // in use; during a trial the one tried
  uint32_t settled_size_;       // to return to when the trial fails
  bool is_trying_ = false;
  Window window_;               // of the size in use
  Window settled_;              // during a trial: of the settled size
  int64_t next_trial_ns_ = 0;   // not before
};

}  // namespace tandem::cpu
