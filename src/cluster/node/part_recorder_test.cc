#include "cluster/node/part_recorder.h"

#include <doctest/doctest.h>

#include "base/log.h"

namespace tandem::node {
namespace {

using handoff::Part;

const std::string kTraceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST_CASE("what a node measures is a span under the gateway's, in the trace that came with the request") {
  trace::SpanRing ring(10);
  PartRecorder recorder("p0", &ring);
  handoff::Prefill prefill;
  prefill.request = {1, 7};
  prefill.attempt = 2;
  prefill.traceparent = kTraceparent;
  const handoff::Timings timings{{1, 7}, 2, {{Part::kPrefillQueue, 30, 10}, {Part::kPrefill, 0, 30}}};
  recorder.on_sent(timings);  // of a request without a trace
  CHECK(ring.spans().empty());
  recorder.on_message(prefill);
  recorder.on_sent(timings);
  recorder.on_sent(handoff::Running{{1, 7}, 2});
  REQUIRE(ring.spans().size() == 2);
  const trace::Span queue = ring.spans()[0], run = ring.spans()[1];
  CHECK(queue.name == "prefill queue");
  CHECK(run.process == "p0");
  CHECK(run.lane == 7);
  CHECK(run.duration_ns == 30);
  CHECK(queue.begin_unix_ns + queue.duration_ns == run.begin_unix_ns);
  CHECK(trace_id_hex(run.context) == "0af7651916cd43dd8448eb211c80319c");
  CHECK(span_id_hex(run.context.parent) == "b7ad6b7169203331");
}

TEST_CASE("a header that is none gives no trace, and old requests are forgotten") {
  trace::SpanRing ring(10);
  PartRecorder recorder("d0", &ring);
  handoff::Reserve reserve;
  reserve.attempt = 1;
  reserve.traceparent = "nonsense";
  recorder.on_message(reserve);
  recorder.on_sent(handoff::Timings{{}, 1, {{Part::kDecode, 0, 1}}});
  CHECK(ring.spans().empty());
  reserve.traceparent = kTraceparent;
  for (uint64_t i = 1; i <= 5000; ++i) {
    reserve.request = {0, i};
    recorder.on_message(reserve);
  }
  recorder.on_sent(handoff::Timings{{0, 1}, 1, {{Part::kDecode, 0, 1}}});
  CHECK(ring.spans().empty());
  recorder.on_sent(handoff::Timings{{0, 5000}, 1, {{Part::kDecode, 0, 1}}});
  CHECK(ring.spans().size() == 1);
}

}  // namespace
}  // namespace tandem::node
