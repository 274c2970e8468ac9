// Faults of transfers, of nodes that come back and of loads, as other systems have had them: each request ends as
// without them, and nothing stays behind. Each fails with a rule left out: 04, 05, 06, OVL-07 when requests are never
// released; 05 without the gate of all parts; 15 without the ramp; OVL-05 without memory of bad pairs; DEP-01 when a
// long step is never stuck.
#include <doctest/doctest.h>

#include "cluster/mocker/cases_for_test.h"

namespace tandem::mocker {
namespace {

TEST_CASE("PDD-04: a slow network and a prefill pool for two prompts: what is not yet pushed stays, and all end") {
  SimConfig config = small_cluster({kP1, kD1});
  config.pool = {32, 16, 16};
  config.max_pinned_blocks = 16;
  config.net.delay_min = 10 * kMs;
  config.net.delay_max = 40 * kMs;
  Run run(config);
  for (size_t i = 0; i < 20; ++i) run.ask(100 + i, 8);
  run.finish(20, 120 * kSecond);
}

TEST_CASE("PDD-05: each part of a transfer lost, doubled or damaged: every request ends, with the same tokens") {
  const auto with = [](double drop, double duplicate, double corrupt) {
    return NetConfig{20'000, 3'000'000, drop, duplicate, corrupt};
  };
  for (const NetConfig& net : {with(0.1, 0, 0), with(0, 0.5, 0), with(0, 0, 0.1), with(0.05, 0.2, 0.05)}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SimConfig config = small_cluster({kP1, kP2, kD1, kD2});
      config.seed = seed;
      config.net = net;
      Run run(config);
      for (size_t i = 0; i < 6; ++i) run.ask(40 + 7 * i, 20, 1 + i % 2);
      run.finish(6, 120 * kSecond);
    }
  }
}

TEST_CASE("PDD-06: a decode node that cannot be reached: another serves within 2 s, and prefill keeps nothing") {
  for (Nanos at = 0; at <= 60 * kMs; at += 6 * kMs) {
    Run run(small_cluster({kP1, kD1, kD2}));
    const Nanos asked = run.cluster.now();
    run.ask(90, 4);
    run.cluster.run_for(at);
    run.cluster.kill_node(1);
    run.cluster.run_for(10 * kSecond, true);
    CHECK(run.cluster.num_completed() == 1);
    CHECK(run.cluster.now() - asked < 2 * kSecond);  // virtual
    run.cluster.run_for(kSecond);
    CHECK(run.cluster.node(0).is_idle());
    run.cluster.heal_all();
    run.finish(1);
  }
}

TEST_CASE("PDD-15: a node that comes back empty is not buried under all new work") {
  SimConfig config = small_cluster({{"m1", Role::kMixed}, {"m2", Role::kMixed}, {"m3", Role::kMixed}});
  config.ramp = 10 * kSecond;
  Run run(config);
  run.cluster.run_for(15 * kSecond);
  run.cluster.kill_node(0);
  run.cluster.run_for(kSecond);
  run.cluster.restart_node(0);
  run.cluster.run_for(500 * kMs);
  for (size_t i = 0; i < 24; ++i) run.ask(30 + i, 30);
  run.cluster.run_for(30 * kMs);
  const auto& links = run.cluster.gateway(0).links();
  CHECK(links.at("m1").num_requests < links.at("m2").num_requests);
  CHECK(links.at("m1").num_requests < links.at("m3").num_requests);
  run.finish(24);
}

TEST_CASE("OVL-05: one of three links never works: it is remembered, and adds few attempts") {
  Run run(small_cluster({kP1, kP2, kD1, kD2}));
  run.cluster.cut_between(0, 2, true);
  constexpr size_t kRequests = 200;
  for (size_t i = 0; i < kRequests; ++i) {
    run.ask(20 + i % 40, 6);
    run.cluster.run_for(60 * kMs);
  }
  run.cluster.run_for(30 * kSecond, true);
  CHECK(run.cluster.num_completed() == kRequests);
  CHECK(run.cluster.num_recoveries() <= kRequests / 10);
  run.cluster.heal_all();
  run.finish(kRequests);
}

// The fault: no node is told that a request has ended.
TEST_CASE("OVL-07: thousands of requests, every tenth cancelled, leave no trace in any table") {
  Run run(small_cluster({kP1, kD1}));
  for (size_t i = 0; i < 3000; ++i) {
    const RequestId id = run.ask(20 + i % 30, 3);
    run.cluster.run_for(static_cast<Nanos>(i % 7) * kMs);
    if (i % 10 == 0) run.cluster.cancel(id);
  }
  run.cluster.run_for(60 * kSecond, true);
  CHECK(run.cluster.num_open() == 0);
  run.cluster.run_for(5 * kSecond);
  run.cluster.check_at_rest();
  CHECK_MESSAGE(run.cluster.violation().empty(), run.cluster.violation());
  CHECK(run.cluster.gateway(0).requests().empty());
}

TEST_CASE("DEP-01: an engine that hangs while its node still answers: its work goes on elsewhere, and none comes") {
  Run run(small_cluster({kP1, kD1, kD2}));
  for (size_t i = 0; i < 6; ++i) run.ask(30 + i, 60);
  run.cluster.run_for(80 * kMs);
  run.cluster.hang_engine(1);
  run.cluster.run_for(20 * kSecond, true);
  CHECK(run.cluster.num_completed() == 6);
  for (size_t i = 0; i < 4; ++i) run.ask(40 + i, 10);
  run.cluster.run_for(20 * kSecond, true);
  CHECK(run.cluster.num_completed() == 10);
  run.cluster.heal_all();
  run.finish(10);
}

}  // namespace
}  // namespace tandem::mocker
