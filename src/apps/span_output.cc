#include "apps/span_output.h"

#include <cstdio>

#include "base/log.h"
#include "trace/span_json.h"

namespace tandem::apps {
namespace {

constexpr size_t kMaxSpans = 20000;  // some 10 MB of the newest

bool write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return (std::fclose(file) == 0) && is_written;
}

}  // namespace

SpanOutput::SpanOutput(const OptionValues& values, MetricRegistry& metrics)
    : ring_(kMaxSpans), file_(values.has("trace-file") ? values.text("trace-file") : std::string()) {
  if (!values.has("otlp-endpoint")) return;
  otlp::OtlpConfig config;
  config.url = values.text("otlp-endpoint");
  exporter_ = std::make_unique<otlp::OtlpExporter>(std::move(config), metrics);
}

SpanOutput::~SpanOutput() {
  if (file_.empty()) return;
  if (!write_file(file_, chrome_json())) log_warning("apps", "the trace was not written", {{"file", file_}});
}

void SpanOutput::record(const trace::Span& span) {
  ring_.record(span);
  if (exporter_ != nullptr && span.process == process_) exporter_->record(span);
}

std::string SpanOutput::chrome_json() const { return trace::chrome_json(ring_.spans()); }

}  // namespace tandem::apps
