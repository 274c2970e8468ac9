#pragma once
// The protocol's timers. Safety depends on none of them: doubling or halving any may cost time, never an invariant.

#include <cstdint>

#include "cluster/handoff/ids.h"

namespace tandem::handoff {

struct Timing {
  Nanos reserve = 200 * kMs;            // Reserving without an answer; a loaded node may need its time
  Nanos prefill_slack = 200 * kMs;      // added to 3 x predicted
  Nanos transfer_slack = 200 * kMs;     // added to 2 x estimated transfer
  Nanos lease = 2000 * kMs;             // a node keeps a session's requests so long after it last heard the gateway
  Nanos gateway_beat = 500 * kMs;
  Nanos node_beat_busy = 50 * kMs;      // while the session has live requests
  Nanos node_beat_idle = 1000 * kMs;
  Nanos suspect_min = 150 * kMs, suspect_max = 300 * kMs;
  Nanos suspect_idle = 3000 * kMs;      // a session without live requests
  Nanos self_blame = 1000 * kMs;
  Nanos stuck_min = 1000 * kMs;         // a step that runs longer than this and 5 x predicted is stuck
  uint32_t longest_patience = 64;       // times as long, after that has proved wrong; doubles each time
  Nanos bad_pair_min = 1000 * kMs, bad_pair_max = 30000 * kMs;
  Nanos recovery_deadline = 30000 * kMs;  // Waiting
  Nanos reopen = 100 * kMs;             // between tries to open a session; doubles with each that brings no Hello
  Nanos reopen_max = 2000 * kMs;
  Nanos open_timeout = 500 * kMs;
  Nanos mirror_retry = 500 * kMs;       // unprotected so long: another holder is named
  uint32_t max_attempts_after_first = 8;
  uint32_t max_attempts_before_first = 32;
  uint32_t max_deaths = 2;              // processes that died under a request's job: it may be what they die of
  Nanos death_known = 1000 * kMs;       // a process that died is known to have by then: reopen + open_timeout, and time
};

}  // namespace tandem::handoff
