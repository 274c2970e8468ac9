// Overload in virtual time: many times more clients than can be served, which come again as they are told to. Each rule
// that keeps the server useful is left out in turn, to see that the figures notice.

#include <malloc.h>

#include <cmath>

#include "serve/engine/virtual_engine_for_test.h"

namespace tandem::engine {
namespace {

constexpr double kDeadlineMs = 600, kCalmMs = 2'000, kLoadMs = 12'000;
constexpr uint32_t kPrompt = 32, kOutput = 16, kTries = 4;
constexpr double kCapacityPerS = 73;  // what the engine below serves without anybody waiting, about

struct Rules {
  bool tells_deadlines = true;  // the engine knows by when a client wants its answer
  bool bounds_queue = true;
  bool ends_abandoned = true;  // who leaves is cancelled
  double leaving_share = 0;    // of the clients: gone after leaves_after_ms
  double leaves_after_ms = 0;
};

struct Tally {
  uint64_t served = 0;            // in time, and the client was still there
  uint64_t served_meanwhile = 0;  // while the load was on
  uint64_t late = 0;              // whole answers after the deadline
  uint64_t broken = 0;            // accepted, and ended with an error
  uint64_t too_long = 0;          // accepted, and ended, in whatever way, after the deadline
  uint64_t refused = 0;
  std::vector<double> latencies_ms;
};

// A deadline is looked at between steps, so what ends with the step in which it passes is not late.
constexpr double kStepMs = 12;

// Clients at a rate, each with a deadline for every try.
class Clients {
 public:
  Clients(VirtualEngine& world, const Rules& rules) : world_(world), rules_(rules) {}

  void come(double rate_per_s, double until_ms, std::shared_ptr<Tally> tally) {
    std::exponential_distribution<double> gap_ms(rate_per_s / 1000);
    double at_ms = world_.now_ms();
    while ((at_ms += gap_ms(random_)) < until_ms) world_.at(at_ms, [this, tally] { attempt(kTries, tally); });
  }

 private:
  void attempt(uint32_t tries_left, const std::shared_ptr<Tally>& tally) {
    sched::Request request = world_.request(kPrompt, kOutput, static_cast<uint32_t>(random_()));
    const double deadline_ms = world_.now_ms() + kDeadlineMs;
    if (rules_.tells_deadlines) request.deadline_ns = static_cast<int64_t>(deadline_ms * 1e6);
    sched::RequestId id{};
    const auto told = world_.ask(std::move(request), &id);
    if (!told) {
      ++tally->refused;
      const auto code = world_.refusal.code;
      CHECK((code == ErrorCode::kExhausted || code == ErrorCode::kUnavailable));
      const double wait_s = std::ceil(world_.engine.load().retry_after_s);  // as the header says it
      if (tries_left > 1) {
        world_.at(world_.now_ms() + wait_s * 1000, [this, tries_left, tally] { attempt(tries_left - 1, tally); });
      }
      return;
    }
    const bool leaves = std::uniform_real_distribution<double>(0, 1)(random_) < rules_.leaving_share;
    if (leaves && rules_.ends_abandoned) {
      world_.at(world_.now_ms() + rules_.leaves_after_ms, [this, id] { world_.engine.cancel(id); });
    }
    if (leaves) return;
    // Looked at when the load is long over: everything has ended by then, one way or the other.
    world_.at(deadline_ms + 60'000, [told, deadline_ms, tally] { count(*told, deadline_ms, *tally); });
  }

  static void count(const Told& told, double deadline_ms, Tally& tally) {
    const bool is_in_time = told.end_ms >= 0 && told.end_ms <= deadline_ms + kStepMs;
    if (!is_in_time) ++tally.too_long;
    if (told.is_served() && is_in_time) {
      ++tally.served;
      tally.served_meanwhile += told.end_ms <= kCalmMs + kLoadMs;
      tally.latencies_ms.push_back(told.end_ms - told.asked_ms);
    } else if (told.is_served()) {
      ++tally.late;
    } else {
      ++tally.broken;
    }
  }

  VirtualEngine& world_;
  const Rules rules_;
  std::mt19937 random_{7};
};

EngineConfig overload_config(const Rules& rules) {
  EngineConfig config = virtual_config();
  config.sched.max_queue_length = rules.bounds_queue ? 64 : 0;
  return config;
}

// So many times the capacity for a while, after a quiet one in which the server learns what steps cost; then a minute
// for what is left.
Tally tally_at(double times, const Rules& rules) {
  VirtualEngine world(overload_config(rules));
  Clients clients(world, rules);
  const auto tally = std::make_shared<Tally>();
  clients.come(0.5 * kCapacityPerS, kCalmMs, std::make_shared<Tally>());
  world.run_until(kCalmMs);
  clients.come(times * kCapacityPerS, kCalmMs + kLoadMs, tally);
  world.run_until(kCalmMs + kLoadMs + 120'000);
  CHECK(world.engine.scheduler().is_idle());
  CHECK(world.engine.load().num_waiting == 0);
  return *tally;
}

double goodput_of(const Tally& tally) { return static_cast<double>(tally.served_meanwhile) / kLoadMs * 1000; }
double goodput_at(double times, const Rules& rules) { return goodput_of(tally_at(times, rules)); }

TEST_CASE("under ten times the load goodput stays at its peak, and what is accepted is served in time") {
  double peak = 0, least = 1e9;
  for (const double times : {0.9, 1.5, 3.0, 10.0}) {
    const Tally tally = tally_at(times, {});
    const double goodput = goodput_of(tally);
    const double accepted = static_cast<double>(tally.served + tally.late + tally.broken);
    MESSAGE("load " << times << ": goodput " << goodput << "/s, accepted " << accepted << ", late " << tally.late
                    << ", broken " << tally.broken << ", refused " << tally.refused);
    CHECK(tally.late == 0);
    CHECK(tally.too_long == 0);  // in time or with an error, never without a word
    CHECK(static_cast<double>(tally.served) >= 0.99 * accepted);
    if (times > 1) {
      peak = std::max(peak, goodput);
      least = std::min(least, goodput);
      CHECK(tally.refused > 0);
    }
  }
  CHECK(least >= 0.9 * peak);
  CHECK(least >= 0.9 * kCapacityPerS);

  // Without deadlines nobody is turned away in time: the queue's bound alone lets in what comes too late.
  Rules silent;
  silent.tells_deadlines = false;
  CHECK(goodput_at(10, silent) < 0.9 * peak);
  // Without any bound the same, and memory grows as well.
  silent.bounds_queue = false;
  CHECK(goodput_at(3, silent) < 0.5 * peak);
}

TEST_CASE("API-06 under overload: who leaves costs no further step") {
  Rules rules;
  rules.leaving_share = 0.5;
  rules.leaves_after_ms = 30;
  const double goodput = goodput_at(5, rules);
  rules.ends_abandoned = false;  // the fault: their answers are computed for nobody
  CHECK(goodput_at(5, rules) < 0.8 * goodput);
}

TEST_CASE("when the load goes the server is as before within seconds: no retry keeps it busy") {
  const Rules rules;
  VirtualEngine world(overload_config(rules));
  Clients clients(world, rules);
  const auto calm = std::make_shared<Tally>(), storm = std::make_shared<Tally>(), after = std::make_shared<Tally>();
  clients.come(0.5 * kCapacityPerS, 5'000, calm);
  world.run_until(5'000);
  clients.come(10 * kCapacityPerS, 15'000, storm);
  world.run_until(15'000);
  // They may come back four times, each after two seconds or three: then they have given up.
  world.run_until(25'000);
  clients.come(0.5 * kCapacityPerS, 35'000, after);
  world.run_until(200'000);
  CHECK(after->refused == 0);
  CHECK(after->broken == 0);
  CHECK(quantile(after->latencies_ms, 0.99) <= 1.5 * quantile(calm->latencies_ms, 0.99));
  CHECK(world.engine.load().retry_after_s <= 1.5);
}

TEST_CASE("a slow spell that nobody foresaw: what cannot be in time any more costs no step") {
  VirtualEngine world(overload_config({}));
  const auto ask = [&](uint32_t seed, double deadline_ms) {
    sched::Request request = world.request(100, 4, seed);
    request.deadline_ns = static_cast<int64_t>((world.now_ms() + deadline_ms) * 1e6);
    return world.ask(std::move(request));
  };
  for (uint32_t i = 0; i < 20; ++i) {  // it learns what steps cost
    REQUIRE(ask(i, 10'000));
    world.run_until(world.now_ms() + 100);
  }
  std::vector<std::shared_ptr<Told>> told;
  for (uint32_t i = 0; i < 30; ++i) {
    told.push_back(ask(100 + i, 400));
    REQUIRE(told.back());
  }
  const uint64_t before = world.num_rows;
  world.clock.advance_ms(397);  // the machine stood still
  world.run_until(world.now_ms() + 1000);
  for (const auto& one : told) {
    REQUIRE(one->error);
    CHECK(one->error->code == ErrorCode::kDeadline);
  }
  CHECK(world.num_rows == before);
  CHECK(ask(999, 10'000));
}

TEST_CASE("predictions that were right once lock nobody out: with nothing under way a request shows how it is now") {
  VirtualEngine world(overload_config({}));
  for (uint32_t i = 0; i < 4; ++i) {  // a slow spell, and long answers of several choices
    sched::Request request = world.request(20, 300, i);
    request.num_choices = 3;
    REQUIRE(world.ask(std::move(request)));
  }
  world.cost = {200, 1, 20};
  world.run_until(200'000);
  world.cost = {};
  const auto ask = [&](uint32_t seed) {
    sched::Request request = world.request(20, 10, seed);
    request.deadline_ns = static_cast<int64_t>((world.now_ms() + 300) * 1e6);
    auto told = world.ask(std::move(request));
    world.run_until(world.now_ms() + 1'000);
    return told;
  };
  for (uint32_t i = 0; i < 40; ++i) REQUIRE(ask(100 + i));  // the fault: the first is refused, and so is every other
  const auto last = ask(200);
  REQUIRE(last);
  CHECK(last->is_served());
}

TEST_CASE("OVL-01: of five thousand at once the queue takes as many as it may, the others are refused at once") {
  // The fault: how many wait already is not looked at.
  EngineConfig config = virtual_config();
  config.sched.max_num_seqs = 4;
  config.sched.max_queue_length = 16;
  VirtualEngine world(config);
  std::vector<std::shared_ptr<Told>> accepted;
  const auto offer = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      if (auto told = world.ask(world.request(8, 50, i)))
        accepted.push_back(std::move(told));
      else
        CHECK(world.refusal.code == ErrorCode::kUnavailable);
    }
  };
  offer(4);
  world.engine.run_once();
  offer(5000);
  CHECK(accepted.size() == 20);
  CHECK(world.engine.load().retry_after_s >= 1);
  world.run_until(10'000);
  for (const auto& told : accepted) CHECK(told->is_served());
}

TEST_CASE("OVL-07: of a hundred thousand requests, half of them cancelled, nothing is kept, not even their ids") {
  // The fault: a list of the ids that were cancelled, from which nothing is taken.
  VirtualEngine world;
  const auto run = [&world](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      sched::RequestId id{};
      const auto told = world.ask(world.request(4, 2, i), &id);
      REQUIRE(told);
      if (i % 2 == 1) world.engine.cancel(id);
      while (world.engine.run_once()) continue;
      CHECK(told->end_ms >= 0);
    }
    const auto memory = mallinfo2();  // zeros where a sanitizer counts by itself
    return memory.uordblks + memory.hblkhd;
  };
  const size_t before = run(10'000);
  const size_t after = run(100'000);
  MESSAGE("grown by ", static_cast<int64_t>(after - before), " bytes");
  CHECK(after < before + 100'000);
}

TEST_CASE("the queue is bounded by prompt tokens and by predicted time too") {
  EngineConfig config = virtual_config();
  config.sched.max_queue_length = 0;
  SUBCASE("time") {
    config.sched.max_queue_s = 0.5;
    VirtualEngine world(config);
    for (uint32_t i = 0; i < 20; ++i) REQUIRE(world.ask(world.request(100, 4, i)));
    world.run_until(2'000);  // what a prompt's token costs is known from here on
    std::vector<std::shared_ptr<Told>> taken;
    while (taken.size() < 10'000) {
      auto told = world.ask(world.request(100, 4, 0));
      if (!told) break;
      taken.push_back(std::move(told));
    }
    CHECK(world.refusal.code == ErrorCode::kUnavailable);
    CHECK(world.engine.check_room("").error().code == ErrorCode::kUnavailable);
    world.run_until(world.now_ms() + 60'000);
    REQUIRE(taken.size() > 10);
    const double waited_ms = taken.back()->first_ms - taken.back()->asked_ms;
    CHECK(waited_ms > 250);
    CHECK(waited_ms < 1000);
    CHECK(world.engine.check_room(""));
  }
  SUBCASE("tokens") {
    config.sched.max_queued_tokens = 1000;
    VirtualEngine world(config);
    for (uint32_t i = 0; i < 10; ++i) REQUIRE(world.ask(world.request(100, 4, i)));
    CHECK(!world.ask(world.request(1, 4, 11)));
    CHECK(world.refusal.message == "the queue is full: 1000 prompt tokens wait");
    world.run_until(2'000);
    CHECK(world.ask(world.request(1, 4, 11)));
  }
}

TEST_CASE("those who are refused together are told to come back at different times") {
  EngineConfig config = virtual_config();
  config.sched.max_num_seqs = 1;
  config.sched.max_queue_length = 400;
  VirtualEngine world(config);
  for (uint32_t i = 0; i < 400; ++i) REQUIRE(world.ask(world.request(8, 20, i)));
  // Each takes 20 steps of about 2.5 ms: a place is free every 50 ms.
  world.run_until(3'000);
  while (world.ask(world.request(8, 20, 1))) continue;
  std::vector<double> told_s;
  for (int i = 0; i < 200; ++i) told_s.push_back(world.engine.load().retry_after_s);
  const double drain_s = 400 * 0.05;
  CHECK(quantile(told_s, 0) == doctest::Approx(drain_s).epsilon(0.2));
  CHECK(quantile(told_s, 1) == doctest::Approx(1.5 * drain_s).epsilon(0.2));
  CHECK(quantile(told_s, 0.75) - quantile(told_s, 0.25) > 0.2 * drain_s);
  // A queue that has gone says nothing of the next one, however long ago it was.
  world.run_until(100'000);
  CHECK(world.engine.load().retry_after_s <= 1.5);
  world.run_until(4'000'000);
  for (uint32_t i = 0; i < 3; ++i) REQUIRE(world.ask(world.request(8, 20, i)));
  world.run_until(4'000'060);
  CHECK(world.engine.load().retry_after_s <= 1.5);
}

TEST_CASE("the pace of tokens is one choice's, however long another goes on") {
  // The fault: the first choice's tokens by the time until the last choice's end.
  VirtualEngine world;
  world.executor.set_next_token([](const sched::BatchItem& item) -> TokenId {
    const size_t num_output = item.tokens.size() - item.num_prompt_tokens;
    return item.sampling->choice == 0 && num_output >= 2 ? 2 : 20;
  });
  for (uint32_t i = 0; i < 10; ++i) {
    sched::Request request = world.request(20 + 10 * i, 300, i);
    request.num_choices = 2;
    request.ignore_eos = false;
    REQUIRE(world.ask(std::move(request)));
    world.run_until(world.now_ms() + 2'000);
  }
  REQUIRE(world.engine.load().num_running == 0);
  REQUIRE(world.ask(world.request(20, 50, 100)));
  world.run_until(world.now_ms() + 20);
  sched::Request quick = world.request(20, 10, 101);  // eleven steps of some 3 ms
  quick.deadline_ns = static_cast<int64_t>((world.now_ms() + 150) * 1e6);
  const auto told = world.ask(std::move(quick));
  REQUIRE(told);
  world.run_until(world.now_ms() + 1'000);
  CHECK(told->is_served());
}

TEST_CASE("long answers of long ago do not shut out short deadlines for ever") {
  // The faults: the gate went by what it had learned with nobody there to teach it better, and so did the scheduler.
  VirtualEngine world;
  for (uint32_t i = 0; i < 6; ++i) {
    REQUIRE(world.ask(world.request(20 + 30 * i, 400, i)));
    world.run_until(world.now_ms() + 3'000);
  }
  const auto ask = [&world](uint32_t seed) {
    sched::Request request = world.request(30, 400, seed);
    request.ignore_eos = false;
    request.deadline_ns = static_cast<int64_t>((world.now_ms() + 300) * 1e6);
    world.executor.set_script(request.prompt, {20, 21, 2});
    return world.ask(std::move(request));
  };
  REQUIRE(world.engine.load().num_running == 0);
  for (uint32_t i = 0; i < 60; ++i) {
    const auto probe = ask(100 + i);
    REQUIRE(probe);
    if (i == 0) CHECK(!ask(1000));  // one at a time, as long as it looks as if they were late
    world.run_until(world.now_ms() + 1'000);
    CHECK(probe->is_served());
  }
  // They were short, so it is known now that several can be in time.
  const auto first = ask(2000), second = ask(2001);
  REQUIRE(first);
  REQUIRE(second);
  world.run_until(world.now_ms() + 1'000);
  CHECK(first->is_served());
  CHECK(second->is_served());
}

}  // namespace
}  // namespace tandem::engine
