#pragma once
// PartRecorder: what a node tells its gateways of the parts it measured, as spans of the requests' traces. One thread.

#include <deque>
#include <map>
#include <string>

#include "cluster/handoff/messages.h"
#include "trace/span.h"

namespace tandem::node {

class PartRecorder {
 public:
  // `sink` outlives it; null: nobody wants spans.
  PartRecorder(std::string process, trace::SpanSink* sink) : process_(std::move(process)), sink_(sink) {}

  // A message from a gateway. Logs the first of each request with its trace.
  void on_message(const handoff::SessionMessage& message);
  // A message to a gateway.
  void on_sent(const handoff::SessionMessage& message) const;

 private:
  static constexpr size_t kMaxRequests = 4096;  // the newest

  void remember(const handoff::RequestId& request, const std::string& traceparent, const char* work);

  const std::string process_;
  trace::SpanSink* const sink_;
  std::map<handoff::RequestId, TraceContext> traces_;
  std::deque<handoff::RequestId> order_;
};

}  // namespace tandem::node
