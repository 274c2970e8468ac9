#include "trace/span.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "trace/span_json.h"

namespace tandem::trace {
namespace {

Span span_of(const std::string& process, const std::string& name, uint64_t lane, uint64_t id, uint64_t parent) {
  Span span;
  span.context = {0x0af7651916cd43dd, 0x8448eb211c80319c, id, parent, true};
  span.process = process;
  span.name = name;
  span.lane = lane;
  span.begin_unix_ns = 1'700'000'000'123'456'789;
  span.duration_ns = 2'500'000;
  span.attributes = {{"attempt", "2"}};
  return span;
}

const JsonValue& at(const JsonValue& json, const char* key, size_t index) {
  return (*json.find(key)->if_array())[index];
}

TEST_CASE("the ring keeps the newest") {
  SpanRing ring(3);
  for (uint64_t i = 1; i <= 5; ++i) ring.record(span_of("g", "x", i, i, 0));
  REQUIRE(ring.spans().size() == 3);
  CHECK(ring.spans()[0].lane == 3);
  CHECK(ring.spans()[2].lane == 5);
  CHECK(ring.num_dropped() == 2);
}

TEST_CASE("OTLP: one resource per process, ids in hex, nanoseconds as text") {
  const std::vector<Span> spans = {span_of("gateway", "request", 7, 5, 3), span_of("d0", "decode", 7, 6, 5)};
  auto json = JsonValue::parse(otlp_json(spans));
  REQUIRE(json);
  REQUIRE(json->find("resourceSpans")->if_array()->size() == 2);
  const JsonValue& resource = at(*json, "resourceSpans", 0);  // d0 comes first
  CHECK(*at(*resource.find("resource"), "attributes", 1).find("value")->find("stringValue")->if_string() == "d0");
  const JsonValue& decode = at(at(resource, "scopeSpans", 0), "spans", 0);
  CHECK(*decode.find("traceId")->if_string() == "0af7651916cd43dd8448eb211c80319c");
  CHECK(*decode.find("spanId")->if_string() == "0000000000000006");
  CHECK(*decode.find("parentSpanId")->if_string() == "0000000000000005");
  CHECK(*decode.find("startTimeUnixNano")->if_string() == "1700000000123456789");
  CHECK(*decode.find("endTimeUnixNano")->if_string() == "1700000000125956789");
  int64_t kind = 0;
  CHECK(at(at(at(*json, "resourceSpans", 1), "scopeSpans", 0), "spans", 0).find("kind")->as_int64(kind));
  CHECK(kind == 2);
}

TEST_CASE("Chrome's form: named processes and lanes, complete events in microseconds") {
  const std::vector<Span> spans = {span_of("gateway", "request", 7, 5, 0), span_of("d0", "decode", 7, 6, 5),
                                   span_of("d0", "decode", 8, 7, 5)};
  auto json = JsonValue::parse(chrome_json(spans));
  REQUIRE(json);
  size_t num_names = 0, num_spans = 0;
  for (const JsonValue& event : *json->find("traceEvents")->if_array()) {
    if (*event.find("ph")->if_string() == "M") ++num_names;
    if (*event.find("ph")->if_string() != "X") continue;
    ++num_spans;
    double ts = 0, dur = 0;
    CHECK(event.find("ts")->as_double(ts));
    CHECK(event.find("dur")->as_double(dur));
    CHECK(ts == doctest::Approx(1'700'000'000'123'456.789).epsilon(1e-12));
    CHECK(dur == doctest::Approx(2500));
    CHECK(*event.find("args")->find("attempt")->if_string() == "2");
  }
  CHECK(num_names == 5);  // two processes, three lanes
  CHECK(num_spans == 3);
}

}  // namespace
}  // namespace tandem::trace
