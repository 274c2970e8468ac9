// Clusters of real size in virtual time, under load, with a fault a minute.
#include <doctest/doctest.h>

#include <algorithm>

#include "cluster/mocker/sim_cluster.h"

namespace tandem::mocker {

using namespace handoff;

namespace {

constexpr Nanos kSecond = 1000 * kMs;

struct Load {
  double requests_per_s = 0;
  uint32_t max_prompt = 0, max_tokens = 0;
};

SimConfig topology(uint32_t num_prefill, uint32_t num_decode, uint32_t num_mixed) {
  SimConfig config;
  for (uint32_t i = 0; i < num_prefill; ++i) config.nodes.push_back({"p" + std::to_string(i), Role::kPrefill});
  for (uint32_t i = 0; i < num_decode; ++i) config.nodes.push_back({"d" + std::to_string(i), Role::kDecode});
  for (uint32_t i = 0; i < num_mixed; ++i) config.nodes.push_back({"m" + std::to_string(i), Role::kMixed});
  config.pool = {1024, 640, 16};
  config.max_pinned_blocks = 256;
  config.engine.chunk_tokens = 512;
  config.engine.slowness = 12;  // 20 ms a step
  config.prefill_tokens_per_s = 2000;
  config.engine.checks_all_positions = false;
  config.tick = 20 * kMs;
  config.ramp = 10 * kSecond;
  return config;
}

// A node that a live request depends on, or any.
size_t busy_node(const SimCluster& cluster, SimRandom& random) {
  const auto& requests = cluster.gateway(0).requests();
  if (requests.empty()) return random.below(cluster.num_nodes());
  auto it = requests.begin();
  std::advance(it, static_cast<long>(random.below(requests.size())));
  const std::string& wanted = random.below(3) == 0 ? it->second->source().id : it->second->target().id;
  for (size_t n = 0; n < cluster.num_nodes(); ++n) {
    if (cluster.is_node_running(n) && cluster.node(n).config().self.id == wanted) return n;
  }
  return random.below(cluster.num_nodes());
}

// What is killed is started again when all heals, what hangs or drains too.
void fault(SimCluster& cluster, SimRandom& random, uint64_t kind) {
  const size_t n = busy_node(cluster, random);
  const size_t m = random.below(cluster.num_nodes());
  switch (kind % 6) {
    case 0: cluster.kill_node(n); break;
    case 1: cluster.stop_node(n); break;
    case 2: cluster.cut_between(n, m, true); break;
    case 3: cluster.cut_from_gateway(0, n, true); break;
    case 4: cluster.hang_engine(n); break;
    default: cluster.drain(n); break;
  }
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1))];
}

void run(const SimConfig& config, const Load& load, int minutes) {
  SimCluster cluster(config);
  SimRandom random(config.seed + 99);
  cluster.run_for(kSecond);
  size_t num_submitted = 0;
  for (int minute = 0; minute < minutes; ++minute) {
    // Arrivals of the minute, its fault at a random moment between two of them, and the repair 2 to 20 s later.
    const auto count = static_cast<size_t>(load.requests_per_s * 60);
    const size_t fault_at = random.below(count / 2);
    const auto heal_after_s = static_cast<double>(2 + random.below(19));
    const auto heal_at = fault_at + static_cast<size_t>(load.requests_per_s * heal_after_s);
    for (size_t i = 0; i < count; ++i) {
      std::vector<TokenId> prompt(16 + random.below(load.max_prompt));
      for (TokenId& token : prompt) token = static_cast<TokenId>(random.below(1000));
      cluster.submit(0, std::move(prompt), 1 + (random.below(8) == 0),
                     8 + static_cast<uint32_t>(random.below(load.max_tokens)));
      ++num_submitted;
      cluster.run_for(random.between(0, static_cast<Nanos>(2e9 / load.requests_per_s)));
      if (i == fault_at) fault(cluster, random, static_cast<uint64_t>(minute));
      if (i == heal_at) cluster.heal_all();
    }
  }
  cluster.run_for(120 * kSecond, true);
  REQUIRE_MESSAGE(cluster.violation().empty(), cluster.violation());
  CHECK(cluster.num_open() == 0);
  CHECK(cluster.num_failed() == 0);
  CHECK(cluster.num_completed() == num_submitted);
  CHECK(cluster.num_mismatches() == 0);
  CHECK(cluster.num_recoveries() > 0);
  cluster.run_for(5 * kSecond);
  cluster.check_at_rest();
  CHECK_MESSAGE(cluster.violation().empty(), cluster.violation());
  MESSAGE(config.nodes.size() << " nodes, " << minutes << " minutes: " << num_submitted << " streams, "
                              << cluster.num_events() << " events, " << cluster.num_recoveries()
                              << " attempts beyond the first, " << cluster.num_suspicions()
                              << " suspicions; virtual gaps between tokens p50 " << percentile(cluster.gaps_ms(), 0.5)
                              << " p99 " << percentile(cluster.gaps_ms(), 0.99) << " p99.99 "
                              << percentile(cluster.gaps_ms(), 0.9999) << " max " << percentile(cluster.gaps_ms(), 1)
                              << " ms");
}

TEST_CASE("20 prefill and 10 decode nodes: with a fault a minute every stream completes and nothing leaks") {
  run(topology(20, 10, 0), {12, 1000, 120}, 6);
}

TEST_CASE("three mixed nodes: the same") { run(topology(0, 0, 3), {3, 400, 120}, 12); }

TEST_CASE("2P1D: its one decode node fails too") { run(topology(2, 1, 0), {3, 400, 120}, 12); }

// Two nodes of which one prefers to prefill and the other to decode, and no way between them.
bool completes_over_a_cut_link(bool forgets_bad_pairs) {
  SimConfig config = topology(1, 1, 0);
  config.engine.checks_all_positions = true;
  config.gateway_rules.forgets_bad_pairs = forgets_bad_pairs;
  config.timing.max_attempts_before_first = 100000;
  SimCluster cluster(config);
  cluster.run_for(kSecond);
  cluster.cut_between(0, 1, true);
  cluster.submit(0, std::vector<TokenId>(40, 3), 1, 20);
  cluster.run_for(20 * kSecond, true);
  return cluster.violation().empty() && cluster.num_completed() == 1;
}

TEST_CASE("L1: a link that is cut for good costs an attempt; without memory of bad pairs the request never ends") {
  CHECK(completes_over_a_cut_link(false));
  CHECK(!completes_over_a_cut_link(true));
}

}  // namespace
}  // namespace tandem::mocker
