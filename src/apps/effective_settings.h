#pragma once
// What options, model and machine came to: the limits that hold, and each option with where its value is from. Told at
// start and by GET /server_info, so that nobody has to guess them from refusals.

#include <cstdint>
#include <string>

#include "base/options.h"
#include "serve/sched/scheduler_config.h"

namespace tandem::apps {

// The limit of one request and the size of the pool that all share are two numbers; neither is divided by the number
// of requests at once. 0: not known here (a gateway's nodes have pools of their own), or no limit.
struct EffectiveLimits {
  uint32_t max_model_len = 0;  // tokens of a request, prompt and answer
  uint32_t kv_blocks = 0;
  uint32_t block_size = 0;     // tokens
  uint32_t max_num_seqs = 0;
  uint32_t max_num_batched_tokens = 0;
  uint32_t max_queue_length = 0;

  uint64_t kv_tokens() const { return uint64_t{kv_blocks} * block_size; }
  void log() const;
};

EffectiveLimits effective_limits(const sched::SchedulerConfig& config);

// {"version":..., "limits":{...}, "options":{NAME:{"value":..., "source":...}}}. Values that may hold a secret are left
// out.
std::string settings_json(const OptionValues& values, const EffectiveLimits& limits);

}  // namespace tandem::apps
