#pragma once
// SchedulerConfig: everything that decides what runs next. Plain data, filled once by apps/.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/sampling_params.h"
#include "serve/sched/line_key.h"

namespace tandem::sched {

struct SchedulerConfig {
  // KV pool
  uint32_t block_size = 16;       // tokens
  uint32_t num_blocks = 0;
  uint32_t num_private_blocks = 0;  // of num_blocks: never taken by prompts
  bool enable_prefix_caching = true;

  // Batch
  uint32_t max_num_seqs = 64;
  uint32_t max_num_batched_tokens = 512;  // raised to max_num_seqs when lower: every running sequence gets its row
  uint32_t max_model_len = 0;             // prompt + output
  double window_ms = 10;                  // how long prompts are gathered while others run
  double tpot_target_ms = 200;            // prefill chunks shrink to keep steps with decode rows inside; 0: off
  uint32_t min_chunk = 16;                // tokens: what the target leaves to prefill at least
  uint32_t decode_reserve_blocks = 1;     // kept free per running sequence when a prompt is admitted

  LinePenalty line;                       // order of waiting requests
  // Share of tokens under contention; absent: 1. With two or more named here an eighth of the seats and of the blocks
  // is kept for tenants that hold less than their share, so that whoever comes finds room beside a flood.
  std::map<std::string, double> tenant_weights;

  // Admission; 0: no limit
  uint32_t max_queue_length = 256;        // requests
  uint64_t max_queued_tokens = 0;         // prompt tokens
  double max_queue_s = 0;                 // predicted until the first step of the last that waits
  uint32_t max_queued_per_tenant = 0;     // requests

  std::vector<TokenId> eos_ids;           // the model's end tokens

  // Test hooks; 0: off
  uint32_t forced_chunk = 0;              // prefill in chunks of at most this many tokens
  uint64_t prefix_hash_mask = ~uint64_t{0};  // weakens the prefix cache's hash; off: all bits
  uint32_t force_preempt_every = 0;       // each so many steps the sequence that would be the victim is preempted
};

}  // namespace tandem::sched
