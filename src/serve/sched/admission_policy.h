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
  uint64_t tenant_tokens = 0;            // queued, of this request's tenant
  double tenant_share = 1;               // of what leaves the queue: its weight by that of all tenants that wait
  double seconds_per_start = 0;          // between requests that leave the queue, while there is one; 0: not known yet
  double mean_output_tokens = 0;         // that requests lately had; 0: not known yet
  // Nothing is under way. Predictions come from requests that ended, and may be of another time: with nobody here they
  // refuse nobody, else a wrong one would never be put right.
  bool is_idle = false;
};

class AdmissionPolicy {
 public:
  explicit AdmissionPolicy(const SchedulerConfig& config);

  // kInvalidArgument when the request can never run, with the number it has and the number it may have.
  Status check_fits(const Request& request) const;

  // kExhausted when this tenant has its share of the queue, kUnavailable when the queue is full: by requests, by prompt
  // tokens or by the time until all of it has begun. A request without tokens asks for any room at all.
  Status check_room(const QueueView& view, uint64_t num_prompt_tokens, const std::string& tenant) const;

  // The same, and kExhausted when the deadline cannot be met.
  Status check_load(const Request& request, const QueueView& view, int64_t now_ns) const;

  // Until a request of this tenant that comes now begins.
  static double predicted_wait_s(const QueueView& view);

  // Requests of one tenant that may wait at once, at most; 0: no limit.
  uint32_t max_waiting() const;
  uint64_t max_waiting_tokens() const;  // of several requests; a single one may always wait

  // The longest sequence (prompt + output): the last token needs no KV.
  uint32_t max_sequence_tokens() const { return max_sequence_tokens_; }

  // Tokens a choice may generate.
  uint32_t max_output(const Request& request) const;

 private:
  double least_share_of(double limit) const;
  double weight_of(const std::string& tenant) const;  // 1: as much as the mean

  SchedulerConfig config_;
  double mean_weight_ = 1;
  uint32_t max_prompt_tokens_;  // that the shared part holds
  uint32_t max_sequence_tokens_;
};

}  // namespace tandem::sched
