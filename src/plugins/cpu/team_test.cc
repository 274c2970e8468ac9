#include "plugins/cpu/team.h"

#include <doctest/doctest.h>

#include <chrono>
#include <numeric>

namespace tandem::cpu {
namespace {

// Each active member adds to its own cell, then after the barrier sums all: what others wrote before must be there. The
// last to arrive counts the round before anybody goes on.
class SumTask final : public TeamTask {
 public:
  SumTask(Team& team, uint32_t rounds) : team_(team), rounds_(rounds) {}
  void prepare(uint32_t num_active) override { cells_.assign(num_active, 0); }
  void work(uint32_t member) override {
    for (uint32_t round = 1; round <= rounds_; ++round) {
      cells_[member] += round;
      team_.barrier(member, [&] { ++rounds_counted_; });
      const uint64_t sum = std::accumulate(cells_.begin(), cells_.end(), uint64_t{0});
      if (sum != uint64_t{round} * (round + 1) / 2 * cells_.size() || rounds_counted_ != round) is_wrong_ = true;
      team_.barrier(member);
    }
  }
  bool is_wrong() const { return is_wrong_ || rounds_counted_ != rounds_; }
  size_t num_took_part() const { return cells_.size(); }

 private:
  std::vector<uint64_t> cells_;
  Team& team_;
  uint32_t rounds_;
  uint32_t rounds_counted_ = 0;
  std::atomic<bool> is_wrong_{false};
};

TEST_CASE("members see what the others wrote before the barrier, for any team size and across runs") {
  for (uint32_t members : {1u, 2u, 3u, 5u}) {
    Team team(members);
    for (int run = 0; run < 20; ++run) {
      SumTask task(team, 50);
      team.run(task);
      CHECK(!task.is_wrong());
    }
  }
}

TEST_CASE("a team may shrink and grow between any two runs") {
  Team team(4);
  // Every size after every other, some twice in a row, and pauses long enough for members to park.
  const uint32_t sizes[] = {4, 2, 1, 4, 1, 2, 4, 3, 2, 3, 1, 3, 4, 4, 1, 1, 2, 2};
  for (int round = 0; round < 12; ++round) {
    for (const uint32_t size : sizes) {
      SumTask task(team, 3);
      team.run_with(size, task);
      CHECK(!task.is_wrong());
      CHECK(task.num_took_part() == size);
      CHECK(team.num_active() == size);
    }
    if (round % 4 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("a team of which most sit out ends") {
  Team team(4);
  SumTask task(team, 1);
  team.run_with(2, task);
  CHECK(!task.is_wrong());
}

TEST_CASE("a team that was never used ends") {
  Team team(4);
  CHECK(team.num_members() == 4);
}

}  // namespace
}  // namespace tandem::cpu
