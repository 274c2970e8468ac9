#pragma once
// A small cluster and a client of it, for cases that other systems got wrong.

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "cluster/mocker/sim_cluster.h"

namespace tandem::mocker {

using namespace handoff;

constexpr Nanos kSecond = 1000 * kMs;

inline SimConfig small_cluster(std::vector<SimNodeSpec> nodes) {
  SimConfig config;
  config.nodes = std::move(nodes);
  config.pool = {64, 32, 16};
  config.max_pinned_blocks = 24;
  config.engine.chunk_tokens = 32;
  return config;
}

inline const SimNodeSpec kP1{"p1", Role::kPrefill}, kP2{"p2", Role::kPrefill}, kD1{"d1", Role::kDecode},
    kD2{"d2", Role::kDecode};

struct Run {
  SimCluster cluster;
  explicit Run(const SimConfig& config) : cluster(config) { cluster.run_for(kSecond); }

  RequestId ask(size_t prompt, uint32_t max_tokens = 20, uint32_t num_choices = 1) {
    return cluster.submit(0, std::vector<TokenId>(prompt, static_cast<TokenId>(prompt)), num_choices, max_tokens);
  }
  // Everything ends well, and then nothing is left.
  void finish(size_t num_completed, Nanos within = 30 * kSecond) {
    cluster.run_for(within, true);
    CHECK(cluster.num_open() == 0);
    CHECK(cluster.num_completed() == num_completed);
    cluster.run_for(5 * kSecond);
    cluster.check_at_rest();
    CHECK_MESSAGE(cluster.violation().empty(), cluster.violation());
    CHECK(cluster.num_mismatches() == 0);
  }
};

}  // namespace tandem::mocker
