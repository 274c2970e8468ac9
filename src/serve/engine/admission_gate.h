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
};

class AdmissionGate {
 public:
  explicit AdmissionGate(const sched::SchedulerConfig& config) : policy_(config) {}

  // Counts the request as queued and gives it an id; or says why not.
  Result<sched::RequestId> enter(const sched::Request& request, int64_t now_ns);
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

  uint32_t num_queued() const;
  uint32_t num_alive() const;
  double retry_after_s() const;

 private:
  struct Ticket {
    std::string tenant;
    uint64_t num_tokens = 0;
    bool is_queued = true;
    bool is_cancelled = false;
  };
  void leave_queue(Ticket& ticket) REQUIRES(mutex_);

  const sched::AdmissionPolicy policy_;
  mutable Mutex mutex_;
  mutable CondVar emptied_;
  std::map<sched::RequestId, Ticket> tickets_ GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> queued_by_tenant_ GUARDED_BY(mutex_);
  std::vector<sched::RequestId> cancelled_ GUARDED_BY(mutex_);
  uint32_t num_queued_ GUARDED_BY(mutex_) = 0;
  uint64_t queued_tokens_ GUARDED_BY(mutex_) = 0;
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  Pace pace_ GUARDED_BY(mutex_);
  int64_t last_start_ns_ GUARDED_BY(mutex_) = 0;
  double start_interval_s_ GUARDED_BY(mutex_) = 0;  // smoothed, while a queue is there
};

}  // namespace tandem::engine
