#include "plugins/cpu/team.h"

#include <doctest/doctest.h>

#include <numeric>

namespace tandem::cpu {
namespace {

// Each member adds to its own cell, then after the barrier sums all: what others wrote before must be there.
class SumTask final : public TeamTask {
 public:
  SumTask(Team& team, uint32_t rounds) : cells_(team.num_members(), 0), team_(team), rounds_(rounds) {}
  void work(uint32_t member) override {
    for (uint32_t round = 1; round <= rounds_; ++round) {
      cells_[member] += round;
      team_.barrier();
      const uint64_t sum = std::accumulate(cells_.begin(), cells_.end(), uint64_t{0});
      if (sum != uint64_t{round} * (round + 1) / 2 * cells_.size()) is_wrong_ = true;
      team_.barrier();
    }
  }
  bool is_wrong() const { return is_wrong_; }

 private:
  std::vector<uint64_t> cells_;
  Team& team_;
  uint32_t rounds_;
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

TEST_CASE("a team that was never used ends") {
  Team team(4);
  CHECK(team.num_members() == 4);
}

}  // namespace
}  // namespace tandem::cpu
