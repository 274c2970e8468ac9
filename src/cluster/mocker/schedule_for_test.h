#pragma once
// Random schedules: a small cluster, a few requests, faults at random moments, then either repair or none. One seed,
// one run; a run that breaks an invariant is repeated with a trace.

#include <string>

#include "cluster/mocker/sim_cluster.h"

namespace tandem::mocker {

struct ScheduleOptions {
  int max_faults = 4;
  // Rules left out, one at a time, to see each invariant fail.
  role::Node::TestOnly node_rules;
  role::Gateway::TestOnly gateway_rules;
  role::KvStore::TestOnly kv_rules;
  int sampling = -1;  // -1: by the seed; 0: deterministic; 1: random
  int scaled = -1;
};

struct ScheduleResult {
  std::string violation;  // empty: all held
  std::string trace;      // when asked for
  uint64_t num_events = 0, num_faults = 0, num_completed = 0, num_recoveries = 0, num_suspicions = 0,
           num_cached_blocks = 0;
};

ScheduleResult run_schedule(uint64_t seed, const ScheduleOptions& options, bool traces);

}  // namespace tandem::mocker
