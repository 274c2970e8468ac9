#include "serve/engine/admission_gate.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/clock.h"

namespace tandem::engine {

double AdmissionGate::weight_of(const std::string& tenant) const {
  const auto found = weights_.find(tenant);
  return found == weights_.end() || found->second <= 0 ? 1 : found->second;
}

sched::QueueView AdmissionGate::view_for(const std::string& tenant) const {
  sched::QueueView view;
  view.num_queued = num_queued_;
  view.queued_tokens = queued_tokens_;
  const double own = weight_of(tenant);
  double all = queued_weight_;
  if (const auto found = queued_by_tenant_.find(tenant); found != queued_by_tenant_.end()) {
    view.tenant_queued = found->second.num_requests;
    view.tenant_tokens = found->second.num_tokens;
  } else {
    all += own;
  }
  view.tenant_share = own / all;
  view.seconds_per_prefill_token = pace_.seconds_per_prefill_token;
  view.mean_output_tokens = pace_.mean_output_tokens;
  view.is_idle = tickets_.empty();
  // Steps as they will be once what waits has its seats; and seats come free no faster than answers end.
  const uint32_t num_rows = std::min(pace_.num_seats, pace_.num_running + num_queued_ + 1);
  view.step_seconds = pace_.step_seconds;
  if (num_rows > pace_.num_running) view.step_seconds += pace_.row_seconds * (num_rows - pace_.num_running);
  const double seat_s = pace_.num_seats == 0 ? 0 : view.mean_output_tokens * view.step_seconds / pace_.num_seats;
  const bool has_seat = num_queued_ + pace_.num_running < pace_.num_seats;
  view.seconds_per_start = has_seat ? 0 : std::max(seconds_per_start(), seat_s);
  return view;
}

Status AdmissionGate::check_room(const std::string& tenant) const {
  Lock lock(mutex_);
  if (is_closed_) return Error{ErrorCode::kUnavailable, "the server is shutting down"};
  return policy_.check_room(view_for(tenant), 0, tenant);
}

Result<sched::RequestId> AdmissionGate::enter(const sched::Request& request, int64_t now_ns) {
  TRY(policy_.check_fits(request));
  Lock lock(mutex_);
  if (is_closed_) return Error{ErrorCode::kUnavailable, "the server is shutting down"};
  TRY(policy_.check_load(request, view_for(request.tenant), now_ns));
  const sched::RequestId id{next_id_++};
  tickets_.emplace(id, Ticket{request.tenant, request.prompt.size()});
  Queued& queued = queued_by_tenant_[request.tenant];
  if (queued.num_requests++ == 0) {
    queued.weight = weight_of(request.tenant);
    queued_weight_ += queued.weight;
  }
  queued.num_tokens += request.prompt.size();
  ++num_queued_;
  queued_tokens_ += request.prompt.size();
  return id;
}

void AdmissionGate::leave_queue(Ticket& ticket) {
  if (!ticket.is_queued) return;
  ticket.is_queued = false;
  if (--num_queued_ == 0) last_start_ns_ = 0;  // the time without a queue says nothing of how fast one drains
  queued_tokens_ -= ticket.num_tokens;
  const auto tenant = queued_by_tenant_.find(ticket.tenant);
  tenant->second.num_tokens -= ticket.num_tokens;
  if (--tenant->second.num_requests > 0) return;
  queued_weight_ -= tenant->second.weight;
  queued_by_tenant_.erase(tenant);
  if (queued_by_tenant_.empty()) queued_weight_ = 0;  // no rounding is carried on
}

void AdmissionGate::start(sched::RequestId id, int64_t now_ns) {
  Lock lock(mutex_);
  const auto found = tickets_.find(id);
  TANDEM_CHECK(found != tickets_.end());
  leave_queue(found->second);
  if (num_queued_ == 0) return;
  if (last_start_ns_ != 0) {
    // Many start with one step and then none for a while: only the ratio of sums is steady.
    constexpr double kMemory_s = 5;
    const double passed_s = static_cast<double>(now_ns - last_start_ns_) * 1e-9;
    const double kept = std::exp(-passed_s / kMemory_s);
    num_starts_ = num_starts_ * kept + 1;
    start_seconds_ = start_seconds_ * kept + passed_s;
  }
  last_start_ns_ = now_ns;
}

void AdmissionGate::end(sched::RequestId id) {
  Lock lock(mutex_);
  const auto found = tickets_.find(id);
  TANDEM_CHECK(found != tickets_.end());
  leave_queue(found->second);
  tickets_.erase(found);
  if (tickets_.empty()) emptied_.notify_all();
}

bool AdmissionGate::cancel(sched::RequestId id) {
  Lock lock(mutex_);
  const auto found = tickets_.find(id);
  if (found == tickets_.end() || found->second.is_cancelled) return false;
  found->second.is_cancelled = true;
  cancelled_.push_back(id);
  return true;
}

std::vector<sched::RequestId> AdmissionGate::take_cancelled() {
  Lock lock(mutex_);
  return std::exchange(cancelled_, {});
}

void AdmissionGate::close() {
  Lock lock(mutex_);
  is_closed_ = true;
}

bool AdmissionGate::is_closed() const {
  Lock lock(mutex_);
  return is_closed_;
}

void AdmissionGate::set_pace(const Pace& pace) {
  Lock lock(mutex_);
  pace_ = pace;
}

bool AdmissionGate::wait_empty(double timeout_s) const {
  const SystemClock clock;  // threads wait in real time, whatever clock the policies have
  const double until_s = clock.now_s() + timeout_s;
  Lock lock(mutex_);
  while (!tickets_.empty()) {
    const double left_s = until_s - clock.now_s();
    if (left_s <= 0) return false;
    emptied_.wait_for(mutex_, left_s);
  }
  return true;
}

uint32_t AdmissionGate::num_queued() const {
  Lock lock(mutex_);
  return num_queued_;
}

uint32_t AdmissionGate::num_alive() const {
  Lock lock(mutex_);
  return static_cast<uint32_t>(tickets_.size());
}

double AdmissionGate::retry_after_s() const {
  Lock lock(mutex_);
  const double drain_s = std::max(seconds_per_start() * num_queued_,
                                  pace_.seconds_per_prefill_token * static_cast<double>(queued_tokens_));
  // The golden ratio's multiples spread as evenly as random numbers do not.
  const double spread = std::fmod(static_cast<double>(++num_asked_) * 0.6180339887498949, 1.0);
  return std::clamp(drain_s, 1.0, 60.0) * (1 + 0.5 * spread);
}

}  // namespace tandem::engine
