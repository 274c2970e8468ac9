#include "cluster/gateway/request_timeline.h"

#include <algorithm>
#include <utility>

namespace tandem::gateway {

using handoff::Nanos;
using handoff::RequestId;

trace::Span RequestTimeline::span_of(const Known& known, const RequestId& id, const std::string& name, Nanos begin,
                                     Nanos duration) const {
  trace::Span span;
  span.context = known.trace;
  span.process = process_;
  span.name = name;
  span.begin_unix_ns = begin + known.unix_offset_ns;
  span.duration_ns = duration;
  span.lane = id.low;
  span.attributes.emplace_back("request", std::to_string(id.low));
  return span;
}

void RequestTimeline::open(const RequestId& id, const TraceContext& trace, Nanos now) {
  if (sink_ == nullptr) return;
  known_.emplace(id, Known{trace, now, trace::unix_now_ns() - now, 0, false});
}

void RequestTimeline::add(const MeasuredPart& part) {
  const auto it = known_.find(part.request);
  if (it == known_.end()) return;
  Known& known = it->second;
  known.attempts = std::max(known.attempts, part.attempt);
  trace::Span span = span_of(known, part.request, part.name, part.began_at, part.duration);
  span.context = child_of(known.trace);
  if (!part.node.empty()) span.process = part.node;
  span.attributes.emplace_back("attempt", std::to_string(part.attempt));
  if (*part.cause != '\0') span.attributes.emplace_back("cause", part.cause);
  sink_->record(span);
}

void RequestTimeline::end(const RequestId& id, const std::string& outcome, Nanos now) {
  const auto it = known_.find(id);
  if (it == known_.end() || std::exchange(it->second.has_ended, true)) return;
  const Known& known = it->second;
  trace::Span span = span_of(known, id, "request", known.arrived, now - known.arrived);
  span.attributes.emplace_back("attempts", std::to_string(known.attempts));
  span.attributes.emplace_back("outcome", outcome);
  sink_->record(span);
  ended_.push_back(id);
  if (ended_.size() <= kMaxEnded) return;
  known_.erase(ended_.front());
  ended_.pop_front();
}

}  // namespace tandem::gateway
