#pragma once
// AdmissionPolicy: whether a request is taken at all. Pure functions; any thread.

#include <cstdint>
#include <string>

#include "base/result.h"
#include "serve/sched/request.h"
#include "serve/sched/scheduler_config.h"

namespace tandem::sched {

// What is queued now (requests not yet scheduled), and how fast it goes.
struct QueueView {
  uint32_t num_queued = 0;
  uint64_t queued_tokens = 0;
  uint32_t tenant_queued = 0;            // of this request's tenant
  double seconds_per_prefill_token = 0;  // predicted; 0: not known yet
  double step_seconds = 0;               // predicted, of a step as they are now
};

class AdmissionPolicy {
 public:
  explicit AdmissionPolicy(const SchedulerConfig& config);

  // kInvalidArgument when the request can never run, with the number it has and the number it may have.
  Status check_fits(const Request& request) const;

  // kUnavailable when the queue is full, kExhausted when this tenant has its share or the deadline cannot be met.
  Status check_load(const Request& request, const QueueView& view, int64_t now_ns) const;

  // The longest sequence (prompt + output): the last token needs no KV.
  uint32_t max_sequence_tokens() const { return max_sequence_tokens_; }

  // Tokens a choice may generate.
  uint32_t max_output(const Request& request) const;

 private:
  SchedulerConfig config_;
  uint32_t max_prompt_tokens_;  // that the shared part holds
  uint32_t max_sequence_tokens_;
};

}  // namespace tandem::sched
