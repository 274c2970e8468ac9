#pragma once
// AdmissionGate: the one place that submitting threads and the engine thread share. It counts what is queued, so that
// submit() can refuse at once, and remembers which requests are to be cancelled. Any thread; locks are held briefly.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_safety.h"
#include "serve/sched/admission_policy.h"

namespace tandem::engine {

// What the engine predicts, for the next admissions.
struct Pace {
  double seconds_per_prefill_token = 0;
  double step_seconds = 0;
  double mean_output_tokens = 0;
  double row_seconds = 0;    // what one more sequence adds to a step
  uint32_t num_running = 0;  // sequences
  uint32_t num_seats = 0;    // for them; 0: not known
};

class AdmissionGate {
 public:
  explicit AdmissionGate(const sched::SchedulerConfig& config) : policy_(config), weights_(config.tenant_weights) {}

  // Counts the request as queued and gives it an id; or says why not.
  Result<sched::RequestId> enter(const sched::Request& request, int64_t now_ns);

  // Why no request of this tenant would be let in now, if so: before anything is spent on one.
  Status check_room(const std::string& tenant) const;

  void start(sched::RequestId id, int64_t now_ns);  // it left the queue
  void end(sched::RequestId id);

  // True when the request is alive and was not cancelled before.
  bool cancel(sched::RequestId id);
  std::vector<sched::RequestId> take_cancelled();

  void close();  // enter() refuses from now on
  bool is_closed() const;
  void set_pace(const Pace& pace);

  // False when `timeout_s` passed and some request is still alive.
  bool wait_empty(double timeout_s) const;

  uint32_t max_waiting() const { return policy_.max_waiting(); }
  uint64_t max_waiting_tokens() const { return policy_.max_waiting_tokens(); }
  uint32_t num_queued() const;
  uint32_t num_alive() const;

  // When one that is refused now may come again: when what waits has begun, from the rate at which it does, and up to
  // half as much later, each time another, so that those who were refused together do not come back together.
  double retry_after_s() const;

 private:
  struct Ticket {
    std::string tenant;
    uint64_t num_tokens = 0;
    bool is_queued = true;
    bool is_cancelled = false;
  };
  struct Queued {  // of a tenant
    double weight = 1;
    uint32_t num_requests = 0;
    uint64_t num_tokens = 0;
  };
  void leave_queue(Ticket& ticket) REQUIRES(mutex_);
  double weight_of(const std::string& tenant) const;
  double seconds_per_start() const REQUIRES(mutex_) { return num_starts_ > 0 ? start_seconds_ / num_starts_ : 0; }
  sched::QueueView view_for(const std::string& tenant) const REQUIRES(mutex_);

  const sched::AdmissionPolicy policy_;
  const std::map<std::string, double> weights_;
  mutable Mutex mutex_;
  mutable CondVar emptied_;
  std::map<sched::RequestId, Ticket> tickets_ GUARDED_BY(mutex_);
  std::map<std::string, Queued> queued_by_tenant_ GUARDED_BY(mutex_);
  double queued_weight_ GUARDED_BY(mutex_) = 0;  // of the tenants that wait
  std::vector<sched::RequestId> cancelled_ GUARDED_BY(mutex_);
  uint32_t num_queued_ GUARDED_BY(mutex_) = 0;
  uint64_t queued_tokens_ GUARDED_BY(mutex_) = 0;
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  Pace pace_ GUARDED_BY(mutex_);
  int64_t last_start_ns_ GUARDED_BY(mutex_) = 0;
  // Requests that left the queue while there was one, and the time that took; old ones fade.
  double num_starts_ GUARDED_BY(mutex_) = 0, start_seconds_ GUARDED_BY(mutex_) = 0;
  mutable uint64_t num_asked_ GUARDED_BY(mutex_) = 0;  // for a time to come back
};

}  // namespace tandem::engine
