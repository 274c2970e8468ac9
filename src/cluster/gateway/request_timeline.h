#pragma once
// RequestTimeline: what was measured of a request, here and by its nodes, as spans of its trace. Gateway thread.

#include <deque>
#include <map>
#include <string>

#include "cluster/gateway/handoff_metrics.h"
#include "trace/span.h"

namespace tandem::gateway {

class RequestTimeline {
 public:
  // `sink` outlives it; null: nobody wants spans.
  RequestTimeline(std::string process, trace::SpanSink* sink) : process_(std::move(process)), sink_(sink) {}

  void open(const handoff::RequestId& id, const TraceContext& trace, handoff::Nanos now);
  void add(const MeasuredPart& part);
  // `outcome`: "complete" or why not. What nodes say later still counts for a while.
  void end(const handoff::RequestId& id, const std::string& outcome, handoff::Nanos now);

 private:
  struct Known {
    TraceContext trace;
    handoff::Nanos arrived = 0;
    int64_t unix_offset_ns = 0;  // from this clock to the time of day
    handoff::Attempt attempts = 0;
    bool has_ended = false;
  };
  static constexpr size_t kMaxEnded = 1024;

  trace::Span span_of(const Known& known, const handoff::RequestId& id, const std::string& name, handoff::Nanos begin,
                      handoff::Nanos duration) const;

  const std::string process_;
  trace::SpanSink* const sink_;
  std::map<handoff::RequestId, Known> known_;
  std::deque<handoff::RequestId> ended_;
};

}  // namespace tandem::gateway
