#pragma once
// SpanOutput: where a process's spans go: kept for whoever asks, sent to a collector (--otlp-endpoint), written to a
// file at the end (--trace-file).

#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/options.h"
#include "net/otlp/otlp_exporter.h"
#include "trace/span.h"

namespace tandem::apps {

class SpanOutput final : public trace::SpanSink {
 public:
  // `metrics` outlives it.
  SpanOutput(const OptionValues& values, MetricRegistry& metrics);
  ~SpanOutput() override;  // writes the file

  // Any thread. Spans of this process go to the collector, those that others told of only to whoever asks here: their
  // own processes send them.
  void record(const trace::Span& span) override;
  // Everything kept, as a page for Perfetto.
  std::string chrome_json() const;

  // The process whose spans are its own. Before the first record().
  void set_process(std::string process) { process_ = std::move(process); }

 private:
  trace::SpanRing ring_;
  std::unique_ptr<otlp::OtlpExporter> exporter_;
  const std::string file_;
  std::string process_;
};

}  // namespace tandem::apps
