#include "net/otlp/otlp_exporter.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "net/fetch/scripted_server.h"
#include "testing/comes_true.h"

namespace tandem::otlp {
namespace {

using fetch::ScriptedServer;
using testing::comes_true;

trace::Span span_of(uint64_t number) {
  trace::Span span;
  span.context = {1, 2, number, 9, true};
  span.process = "d0";
  span.name = "decode";
  span.lane = number;
  span.begin_unix_ns = 1'700'000'000'000'000'000 + static_cast<int64_t>(number);
  span.duration_ns = 5;
  return span;
}

std::string answered(ScriptedServer::Connection& connection) {
  connection.say(fetch::reply_text("200 OK", "", "{}"));
  return {};
}

uint64_t sent(MetricRegistry& metrics) {
  return metrics.counter("tandem_otlp_spans_sent_total", "Spans that the collector took.").value();
}
uint64_t dropped(MetricRegistry& metrics) {
  return metrics
      .counter("tandem_otlp_spans_dropped_total", "Spans lost: the queue was full, or the collector did not take them.")
      .value();
}

TEST_CASE("spans come to the collector, in batches, as OTLP says") {
  ScriptedServer server([](auto& connection, const auto&, size_t) { answered(connection); });
  MetricRegistry metrics;
  {
    OtlpExporter exporter({server.url(""), 8192, 4, 600}, metrics);
    for (uint64_t i = 1; i <= 4; ++i) exporter.record(span_of(i));
    CHECK(comes_true([&] { return sent(metrics) == 4; }));  // a full batch does not wait
    exporter.record(span_of(5));
    trace::Span unwanted = span_of(6);
    unwanted.context.is_sampled = false;
    exporter.record(unwanted);
  }
  CHECK(sent(metrics) == 5);  // the end sends what waits
  CHECK(dropped(metrics) == 0);
  REQUIRE(server.requests().size() == 2);
  const ScriptedServer::Request request = server.requests()[0];
  CHECK(request.path == "/v1/traces");
  CHECK(request.header("Content-Type") == "application/json");
}

TEST_CASE("a collector that is not there, or refuses, costs spans and nothing else") {
  MetricRegistry metrics;
  ScriptedServer server([](auto& connection, const auto&, size_t) {
    connection.say(fetch::reply_text("503 Service Unavailable", "", ""));
  });
  {
    OtlpExporter exporter({server.url("/here"), 8192, 2, 600}, metrics);
    for (uint64_t i = 1; i <= 3; ++i) exporter.record(span_of(i));
  }
  CHECK(dropped(metrics) == 3);
  CHECK(server.requests()[0].path == "/here");
  { OtlpExporter({"http://127.0.0.1:1/v1/traces", 8192, 2, 600}, metrics).record(span_of(4)); }
  CHECK(dropped(metrics) == 4);
  CHECK(sent(metrics) == 0);
}

TEST_CASE("nobody waits for a slow collector: beyond the queue spans are dropped") {
  std::atomic<bool> may_answer{false};
  ScriptedServer server([&](auto& connection, const auto&, size_t) {
    while (!may_answer) std::this_thread::yield();
    answered(connection);
  });
  MetricRegistry metrics;
  {
    OtlpExporter exporter({server.url(""), 10, 1, 600, 600}, metrics);
    exporter.record(span_of(1));
    CHECK(comes_true([&] { return server.requests().size() == 1; }));  // on its way
    for (uint64_t i = 2; i <= 21; ++i) exporter.record(span_of(i));
    CHECK(dropped(metrics) == 10);
    may_answer = true;
  }
  CHECK(sent(metrics) == 11);
}

}  // namespace
}  // namespace tandem::otlp
