#include <doctest/doctest.h>

#include <cmath>

#include "base/log_format.h"
#include "base/metrics.h"

namespace tandem {
namespace {

TEST_CASE("the exposition names each family once, escapes labels and sums buckets up") {
  MetricRegistry registry;
  registry.counter("tandem_requests_total", "Requests.\nBy reason \\ \"kind\".", {{"reason", "a\"b\\c\nd"}}).add(3);
  registry.counter("tandem_requests_total", "Requests.\nBy reason \\ \"kind\".", {{"reason", "stop"}}).add();
  registry.gauge("tandem_use", "Use.").set(0.25);
  HistogramMetric& histogram = registry.histogram("vllm:time_seconds", "Time.", {0.5, 1, 2.5}, {{"engine", "0"}});
  for (double value : {0.1, 0.5, 0.7, 2.0, 9.0}) histogram.observe(value);
  histogram.observe(std::nan(""));
  CHECK(registry.exposition() ==
        "# HELP tandem_requests_total Requests.\\nBy reason \\\\ \"kind\".\n"
        "# TYPE tandem_requests_total counter\n"
        "tandem_requests_total{reason=\"a\\\"b\\\\c\\nd\"} 3\n"
        "tandem_requests_total{reason=\"stop\"} 1\n"
        "# HELP tandem_use Use.\n# TYPE tandem_use gauge\ntandem_use 0.25\n"
        "# HELP vllm:time_seconds Time.\n# TYPE vllm:time_seconds histogram\n"
        "vllm:time_seconds_bucket{engine=\"0\",le=\"0.5\"} 2\n"
        "vllm:time_seconds_bucket{engine=\"0\",le=\"1\"} 3\n"
        "vllm:time_seconds_bucket{engine=\"0\",le=\"2.5\"} 4\n"
        "vllm:time_seconds_bucket{engine=\"0\",le=\"+Inf\"} 5\n"
        "vllm:time_seconds_sum{engine=\"0\"} 12.3\n"
        "vllm:time_seconds_count{engine=\"0\"} 5\n");
  CHECK(histogram.count() == 5);
}

TEST_CASE("declaring again gives the same metric; gauges print the words for no number") {
  MetricRegistry registry;
  CHECK(&registry.counter("a_total", "A.") == &registry.counter("a_total", "A."));
  CHECK(&registry.counter("a_total", "A.") != &registry.counter("a_total", "A.", {{"x", "y"}}));
  registry.gauge("g", "G.").set(INFINITY);
  registry.gauge("h", "H.").set(std::nan(""));
  const std::string text = registry.exposition();
  CHECK(text.find("\ng +Inf\n") != std::string::npos);
  CHECK(text.find("\nh NaN\n") != std::string::npos);
}

TEST_CASE("a log line is one line: time in UTC, level, folder, text, quoted values") {
  // 1706745599007 ms is 2024-01-31T23:59:59.007Z (date -u -d @1706745599).
  CHECK(rfc3339_utc(1706745599007) == "2024-01-31T23:59:59.007Z");
  CHECK(rfc3339_utc(951782400000) == "2000-02-29T00:00:00.000Z");
  CHECK(format_log_line(LogFormat::kText, 1706745599007, LogLevel::kInfo, "net/http", "listening\nnow",
                        {{"port", "8000"}, {"path", "a b"}, {"empty", ""}, {"quote", "x\"y\n"}}) ==
        "2024-01-31T23:59:59.007Z info    net/http: listening now port=8000 path=\"a b\" empty=\"\" "
        "quote=\"x\\\"y\\n\"\n");
  CHECK(format_log_line(LogFormat::kJson, 1706745599007, LogLevel::kError, "base", "say \"no\"", {{"k", "v"}}) ==
        "{\"time\":\"2024-01-31T23:59:59.007Z\",\"level\":\"error\",\"folder\":\"base\",\"text\":\"say \\\"no\\\"\","
        "\"k\":\"v\"}\n");
}

}  // namespace
}  // namespace tandem
