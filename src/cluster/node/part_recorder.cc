#include "cluster/node/part_recorder.h"

#include "base/log.h"

namespace tandem::node {

void PartRecorder::on_message(const handoff::SessionMessage& message) {
  if (const auto* reserve = std::get_if<handoff::Reserve>(&message)) {
    remember(reserve->request, reserve->traceparent, "decode");
  } else if (const auto* prefill = std::get_if<handoff::Prefill>(&message)) {
    remember(prefill->request, prefill->traceparent, "prefill");
  }
}

// A header that is none is an older gateway's, or nonsense: the request runs without a trace.
void PartRecorder::remember(const handoff::RequestId& request, const std::string& traceparent, const char* work) {
  const auto trace = parse_traceparent(traceparent);
  if (!trace || !traces_.emplace(request, *trace).second) return;
  log_info("cluster/node", "a request",
           {{"request", std::to_string(request.low)}, {"trace", trace_id_hex(*trace)}, {"work", work}});
  order_.push_back(request);
  if (order_.size() <= kMaxRequests) return;
  traces_.erase(order_.front());
  order_.pop_front();
}

void PartRecorder::on_sent(const handoff::SessionMessage& message) const {
  const auto* timings = std::get_if<handoff::Timings>(&message);
  if (sink_ == nullptr || timings == nullptr) return;
  const auto trace = traces_.find(timings->request);
  if (trace == traces_.end()) return;
  const int64_t now_ns = trace::unix_now_ns();
  for (const handoff::PartTime& part : timings->parts) {
    trace::Span span;
    span.context = child_of(trace->second);
    span.process = process_;
    span.name = handoff::name_of(part.part);
    span.duration_ns = static_cast<int64_t>(part.duration_ns);
    span.begin_unix_ns = now_ns - static_cast<int64_t>(part.ended_ago_ns + part.duration_ns);
    span.lane = timings->request.low;
    span.attributes = {{"request", std::to_string(timings->request.low)},
                       {"attempt", std::to_string(timings->attempt)}};
    sink_->record(span);
  }
}

}  // namespace tandem::node
