#include "plugins/cpu/team_sizer.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

namespace tandem::cpu {
namespace {

// What a team of some size does on a machine: its rate as measured, and how fast it truly is, in runs a second.
struct Performance {
  double rate;
  double runs_per_s;
};

// A team, the machine it is on, and the time.
class World {
 public:
  explicit World(uint32_t num_members) : sizer(num_members) {}

  // Runs for so long. Returns runs done.
  double run_for(double seconds, const std::map<uint32_t, Performance>& by_size, bool has_kinds = true) {
    const double end_s = now_s_ + seconds;
    double runs = 0;
    while (now_s_ < end_s) {
      const uint32_t size = sizer.num_active();
      const Performance& performance = by_size.at(size);
      // Members that are interrupted make runs unequal: every other one takes three times as long.
      const double unit_s = 0.5 / performance.runs_per_s;
      const double wall_s = ++num_runs_ % 2 == 0 ? 1.5 * unit_s : 0.5 * unit_s;
      now_s_ += wall_s;
      runs += 0.5;
      time_at_[size] += wall_s;
      RunSample sample;
      sample.end_ns = static_cast<int64_t>(now_s_ * 1e9);
      sample.wall_ns = static_cast<int64_t>(wall_s * 1e9);
      sample.worked_ns = static_cast<int64_t>(performance.rate * wall_s * 1e9);
      sample.kind = has_kinds ? 1 + num_runs_ % 2 : 2 + num_runs_;
      sizer.add(sample);
    }
    return runs;
  }
  double time_at(uint32_t size) { return time_at_[size]; }

  TeamSizer sizer;

 private:
  double now_s_ = 0;
  uint64_t num_runs_ = 0;
  std::map<uint32_t, double> time_at_;
};

struct Machine {
  const char* name;
  Performance one, two;
  uint32_t expected;
};

// As measured with decode steps of a small model, and some that are made up to be hard.
const Machine kMachines[] = {
    {"cores of our own", {1.0, 120}, {1.9, 165}, 2},
    {"cores of our own, long runs", {1.0, 2}, {1.95, 3.9}, 2},
    {"cores of our own, bound by memory", {1.0, 120}, {1.9, 125}, 2},
    {"one busy neighbour", {1.0, 110}, {1.0, 43}, 1},
    {"one busy neighbour, ops longer than its turns", {1.0, 2}, {1.5, 3}, 2},
    {"two busy neighbours", {0.62, 80}, {1.0, 55}, 1},
    {"two busy neighbours who keep step", {0.55, 65}, {1.0, 80}, 2},
    {"two busy neighbours, long runs", {0.65, 6}, {0.9, 5}, 1},
    {"ops so small that barriers cost more than they gain", {1.0, 30000}, {1.05, 20000}, 1},
};

TEST_CASE("the size that does more is found and kept, and trials cost less than 3 % of what the better one does") {
  for (const Machine& machine : kMachines) {
    CAPTURE(std::string(machine.name));
    const std::map<uint32_t, Performance> by_size = {{1, machine.one}, {2, machine.two}};
    World world(2);
    world.run_for(4, by_size);
    const double before_s = world.time_at(machine.expected);
    const double runs = world.run_for(20, by_size);
    CHECK(world.time_at(machine.expected) - before_s > 0.9 * 20);
    const double best = std::max(machine.one.runs_per_s, machine.two.runs_per_s);
    CHECK(runs > 0.97 * best * 20);
  }
}

TEST_CASE("a neighbour that comes is noticed soon, and so is that it has left") {
  const std::map<uint32_t, Performance> quiet = {{1, {1.0, 120}}, {2, {1.9, 165}}};
  const std::map<uint32_t, Performance> busy = {{1, {1.0, 110}}, {2, {1.0, 43}}};
  for (const bool has_kinds : {true, false}) {
    World world(2);
    world.run_for(5, quiet, has_kinds);
    CHECK(world.time_at(1) == 0);
    world.run_for(0.1, busy, has_kinds);
    CHECK(world.sizer.num_active() == 1);
    world.run_for(5, busy, has_kinds);
    world.run_for(2, quiet, has_kinds);
    CHECK(world.sizer.num_active() == 2);
    const double reduced_s = world.time_at(1);
    world.run_for(5, quiet, has_kinds);
    CHECK(world.time_at(1) == reduced_s);
  }
}

TEST_CASE("one interruption is no reason") {
  World world(2);
  const std::map<uint32_t, Performance> quiet = {{1, {1.0, 120}}, {2, {1.9, 1000}}};
  const std::map<uint32_t, Performance> interrupted = {{1, {0, 120}}, {2, {0.9, 1000}}};
  for (int i = 0; i < 50; ++i) {
    world.run_for(0.016, quiet);
    world.run_for(0.004, interrupted);
  }
  CHECK(world.time_at(1) == 0);
}

TEST_CASE("runs that wait for files say nothing") {
  TeamSizer sizer(2);
  for (int64_t i = 1; i <= 50; ++i) sizer.add({i * 100'000'000, 100'000'000, 10'000'000, 0});
  CHECK(sizer.num_active() == 2);
}

TEST_CASE("a large team is halved until its members keep up, and grows back") {
  World world(8);
  // Four of eight cores are free.
  const std::map<uint32_t, Performance> crowded = {
      {1, {1.0, 10}}, {2, {1.95, 19}}, {4, {3.8, 37}}, {8, {3.9, 20}}};
  const std::map<uint32_t, Performance> quiet = {{1, {1.0, 10}}, {2, {1.95, 19}}, {4, {3.8, 37}}, {8, {7.4, 70}}};
  world.run_for(20, crowded);
  CHECK(world.time_at(4) > 0.9 * 20);
  world.run_for(10, quiet);
  CHECK(world.sizer.num_active() == 8);
}

TEST_CASE("a team of one has nothing to choose") {
  World world(1);
  world.run_for(2, {{1, {0.2, 100}}});
  CHECK(world.sizer.num_active() == 1);
}

}  // namespace
}  // namespace tandem::cpu
