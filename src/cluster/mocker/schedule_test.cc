#include "cluster/mocker/schedule_for_test.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

namespace tandem::mocker {

using namespace handoff;

namespace {

struct Schedule {
  SimConfig config;
  SimRandom random;
  bool is_repaired = false, is_lone_survivor = false;
  uint64_t num_faults = 0;

  explicit Schedule(uint64_t seed) : random(seed * 31 + 7) {}

  void build(uint64_t seed, const ScheduleOptions& options) {
    config.seed = seed;
    const size_t num_nodes = 3 + random.below(2);
    const char* names[] = {"p1", "d1", "p2", "d2"};
    const bool is_mixed = random.below(4) == 0;
    for (size_t i = 0; i < num_nodes; ++i) {
      const Role role = is_mixed ? Role::kMixed : names[i][0] == 'p' ? Role::kPrefill : Role::kDecode;
      config.nodes.push_back({names[i], role});
    }
    config.num_gateways = 1 + (random.below(4) == 0);
    config.pool = {40, 18, 8};
    config.max_pinned_blocks = random.below(3) == 0 ? 3 : 12;
    config.num_layer_groups = 1 + static_cast<uint32_t>(random.below(2));
    config.has_random_sampling = options.sampling < 0 ? random.below(2) == 0 : options.sampling == 1;
    config.are_timers_scaled = options.scaled < 0 ? random.below(4) == 0 : options.scaled == 1;
    config.does_holder_adopt = random.below(4) != 0;
    config.timing.max_attempts_after_first = config.timing.max_attempts_before_first = 100000;
    config.net.p_drop = random.below(3) == 0 ? 0.01 : 0;
    config.net.p_duplicate = random.below(3) == 0 ? 0.05 : 0;
    config.net.p_corrupt = random.below(4) == 0 ? 0.01 : 0;
    config.tick = 15 * kMs;
    if (seed % 4 != 3) config.router = router::RouterConfig{.policy = static_cast<router::Policy>(seed % 4)};
    config.engine.chunk_tokens = 24;
    config.node_rules = options.node_rules;
    config.gateway_rules = options.gateway_rules;
    config.kv_rules = options.kv_rules;
    is_repaired = random.below(2) == 0;
    is_lone_survivor = !is_repaired && random.below(3) == 0;
  }

  void arrive(SimCluster& cluster) {
    std::vector<TokenId> prompt(3 + random.below(40));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random.below(4));
    if (random.below(3) == 0) std::fill_n(prompt.begin(), std::min<size_t>(prompt.size(), 20), 1);  // begin alike
    cluster.submit(static_cast<uint32_t>(random.below(config.num_gateways)), std::move(prompt),
                   1 + (random.below(4) == 0), 3 + static_cast<uint32_t>(random.below(22)));
  }

  void fault(SimCluster& cluster) {
    const size_t n = random.below(config.nodes.size());
    const size_t m = random.below(config.nodes.size());
    const size_t g = random.below(config.num_gateways);
    ++num_faults;
    switch (random.below(15)) {
      case 0: return cluster.kill_node(n);
      case 1: return cluster.die_at_message(n, 1 + static_cast<uint32_t>(random.below(12)));
      case 2: return cluster.stop_node(n);
      case 3: return cluster.stop_at_message(n, 1 + static_cast<uint32_t>(random.below(12)));
      case 4: return cluster.cut_from_gateway(g, n, true);
      case 5: case 6: return cluster.cut_between(n, m, true);
      case 7: return cluster.suspect(g, n);
      case 8: return cluster.move_request(random.below(8));
      case 9: return cluster.hang_engine(n);
      case 10: return cluster.drain(n);
      case 11: {
        cluster.kill_node(n);
        return cluster.restart_node(n);
      }
      case 12: return cluster.partition(random.next());
      case 13: return cluster.stall_gateway(g, random.between(20 * kMs, 3000 * kMs));
      default: {
        if (config.num_gateways > 1 && g == 1) return cluster.kill_gateway(g);
        return cluster.cancel({g, 1 + random.below(4)});
      }
    }
  }

  // At least one node stays that every gateway reaches, so that L1 is asked for.
  static bool has_survivor(const SimCluster& cluster) {
    for (size_t n = 0; n < cluster.num_nodes(); ++n) {
      if (cluster.is_reachable(n)) return true;
    }
    return false;
  }

  void repair_some(SimCluster& cluster) {
    const size_t n = random.below(config.nodes.size());
    switch (random.below(3)) {
      case 0: return cluster.continue_node(n);
      case 1: return cluster.restart_node(n);
      default:
        for (size_t g = 0; g < config.num_gateways; ++g) cluster.cut_from_gateway(g, n, false);
        return cluster.cut_between(n, random.below(config.nodes.size()), false);
    }
  }
};

}  // namespace

ScheduleResult run_schedule(uint64_t seed, const ScheduleOptions& options, bool traces) {
  Schedule schedule(seed);
  schedule.build(seed, options);
  schedule.config.traces = traces;
  SimCluster cluster(schedule.config);
  SimRandom& random = schedule.random;
  cluster.run_for(60 * kMs);  // sessions open
  const int num_requests = 1 + static_cast<int>(random.below(4));
  int num_arrived = 0;
  int faults_left = static_cast<int>(random.below(static_cast<uint64_t>(options.max_faults) + 1));
  while ((num_arrived < num_requests || faults_left > 0) && cluster.violation().empty()) {
    if (num_arrived < num_requests && (faults_left == 0 || random.below(2) == 0)) {
      schedule.arrive(cluster);
      ++num_arrived;
    } else {
      schedule.fault(cluster);
      --faults_left;
    }
    if (random.below(4) == 0) schedule.repair_some(cluster);
    cluster.run_for(random.between(0, random.below(3) == 0 ? 250 * kMs : 25 * kMs));
  }
  cluster.run_for(random.between(0, 300 * kMs));
  const bool is_healed = schedule.is_repaired || !Schedule::has_survivor(cluster);
  if (is_healed) cluster.heal_all();
  // While one node lives all streams complete, without repair of what failed. Scaled timers may suspect for ever.
  cluster.run_for(40'000 * kMs, true);
  if (cluster.num_open() == 0) {
    cluster.run_for(9000 * kMs);
    cluster.check_at_rest();
  } else if (Schedule::has_survivor(cluster) && !schedule.config.are_timers_scaled) {
    cluster.violated("L1: " + std::to_string(cluster.num_open()) + " streams do not complete\n" +
                     cluster.gateway(0).dump());
  }
  if (!schedule.config.has_random_sampling && cluster.num_mismatches() > 0) {
    cluster.violated("I1: a token came again and was another");
  }
  ScheduleResult result{cluster.violation(), "", cluster.num_events(), schedule.num_faults, cluster.num_completed(),
                        cluster.num_recoveries(), cluster.num_suspicions(), cluster.num_cached_blocks()};
  for (const std::string& line : cluster.trace()) result.trace += line + "\n";
  return result;
}

namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// TANDEM_SCHEDULES=100000 runs more of them, TANDEM_SEED=n from there on.
TEST_CASE("invariants hold over random schedules with faults") {
  const uint64_t num_schedules = number_from("TANDEM_SCHEDULES", 3000);
  const uint64_t first = number_from("TANDEM_SEED", 1);
  ScheduleResult sum;
  for (uint64_t seed = first; seed < first + num_schedules; ++seed) {
    INFO("seed " << seed);
    const ScheduleResult result = run_schedule(seed, {}, false);
    sum.num_events += result.num_events;
    sum.num_faults += result.num_faults;
    sum.num_completed += result.num_completed;
    sum.num_recoveries += result.num_recoveries;
    sum.num_suspicions += result.num_suspicions;
    sum.num_cached_blocks += result.num_cached_blocks;
    if (result.violation.empty()) continue;
    const ScheduleResult again = run_schedule(seed, {}, true);
    FAIL("seed " << seed << ": " << again.violation << "\n" << again.trace);
  }
  MESSAGE(num_schedules << " schedules, " << sum.num_events << " events, " << sum.num_faults << " faults, "
                        << sum.num_completed << " streams complete, " << sum.num_recoveries
                        << " attempts beyond the first, "
                        << sum.num_suspicions << " suspicions");
  CHECK(sum.num_completed > num_schedules);
  CHECK(sum.num_recoveries > num_schedules / 10);
  CHECK(sum.num_cached_blocks > num_schedules / 10);
}

// Without a rule its invariant breaks within so many schedules, and the harness sees it.
void check_caught(const std::string& invariant, const ScheduleOptions& options, uint64_t num_schedules = 3000) {
  std::string others;
  for (uint64_t seed = 1; seed <= num_schedules; ++seed) {
    const std::string violation = run_schedule(seed, options, false).violation;
    if (violation.find(invariant) < 12) {  // at its beginning, perhaps behind another's number
      MESSAGE(invariant << " caught by seed " << seed << ": " << violation.substr(0, 90));
      return;
    }
    if (!violation.empty() && others.size() < 300) others += violation.substr(0, 60) + "; ";
  }
  FAIL(invariant << " was not caught; instead: " << others);
}

TEST_CASE("every invariant can fail: with its rule left out a schedule breaks it") {
  ScheduleOptions options;
  options.max_faults = 6;
  SUBCASE("I1: tokens of any attempt are taken") {
    options.gateway_rules.has_no_attempt_fence = options.gateway_rules.has_no_session_fence = true;
    options.sampling = 1;
    check_caught("I1", options, 20000);
  }
  SUBCASE("I2: decode starts without a full bitmap") {
    options.node_rules.has_no_gate = true;
    check_caught("I2", options);
  }
  SUBCASE("I3: late frames are written where their reservation was") {
    options.node_rules.has_no_push_fence = true;
    check_caught("I3", options, 20000);
  }
  SUBCASE("I4: another source within the same attempt") {
    options.gateway_rules.has_no_new_attempt = true;
    check_caught("I4", options);
  }
  SUBCASE("I5 and L2: nothing is released") {
    options.gateway_rules.never_releases = true;
    check_caught("I5/L2", options);
  }
  SUBCASE("L2: no lease ends") {
    options.node_rules.has_no_lease = true;
    check_caught("I5/L2", options);
  }
  SUBCASE("I6: the cached prefix is used without comparing tokens") {
    options.kv_rules.matches_any_content = true;
    check_caught("I6", options);
  }
  SUBCASE("I7: a newer Hello drops nothing") {
    options.node_rules.has_no_session_fence = true;
    check_caught("I7", options);
  }
  SUBCASE("I8: reservations beyond the private part") {
    options.kv_rules.has_no_budget = true;
    check_caught("I8", options);
  }
  SUBCASE("I9: requests leave something behind") {
    options.node_rules.keeps_entries = true;
    check_caught("I9", options);
  }
  SUBCASE("I10: a rule that trusts a clock") {
    options.node_rules.opens_gate_by_time = true;
    options.scaled = 1;
    check_caught("I2", options, 20000);
  }
  // L1 without its rule: cluster_test.cc. Here random faults break the tie in the end.
}

}  // namespace
}  // namespace tandem::mocker
