#include "net/otlp/otlp_exporter.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"
#include "net/fetch/http_get.h"
#include "trace/span_json.h"

namespace tandem::otlp {
namespace {

// A collector's address may be given without the path, as OTEL_EXPORTER_OTLP_ENDPOINT is.
std::string whole_url(std::string url) {
  const size_t scheme = url.find("://");
  const size_t path = url.find('/', scheme == std::string::npos ? 0 : scheme + 3);
  if (path == std::string::npos) return url + "/v1/traces";
  if (path + 1 == url.size()) return url + "v1/traces";
  return url;
}

OtlpConfig with_whole_url(OtlpConfig config) {
  config.url = whole_url(std::move(config.url));
  return config;
}

}  // namespace

OtlpExporter::OtlpExporter(OtlpConfig config, MetricRegistry& metrics)
    : config_(with_whole_url(std::move(config))),
      sent_(metrics.counter("tandem_otlp_spans_sent_total", "Spans that the collector took.")),
      dropped_(metrics.counter("tandem_otlp_spans_dropped_total",
                               "Spans lost: the queue was full, or the collector did not take them.")),
      thread_([this] { run(); }) {}

OtlpExporter::~OtlpExporter() {
  {
    Lock lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void OtlpExporter::record(const trace::Span& span) {
  if (!span.context.is_sampled || !span.context.is_set()) return;
  bool is_due = false;
  {
    Lock lock(mutex_);
    if (waiting_.size() >= config_.max_waiting) {
      dropped_.add();
      return;
    }
    waiting_.push_back(span);
    is_due = waiting_.size() == 1 || waiting_.size() == config_.max_batch;
  }
  if (is_due) wake_.notify_one();
}

void OtlpExporter::run() {
  for (;;) {
    std::vector<trace::Span> batch;
    bool is_last = false;
    {
      Lock lock(mutex_);
      while (waiting_.empty() && !is_stopping_) wake_.wait(mutex_);
      const auto is_short = [this]() REQUIRES(mutex_) { return waiting_.size() < config_.max_batch && !is_stopping_; };
      while (is_short() && wake_.wait_for(mutex_, config_.batch_s)) {
      }
      batch.swap(waiting_);
      is_last = is_stopping_;
    }
    if (!batch.empty()) send(std::move(batch));
    if (is_last) return;
  }
}

bool OtlpExporter::is_stopping() {
  Lock lock(mutex_);
  return is_stopping_;
}

// In pieces, so that a collector that limits its requests takes them. What fails once is lost: a queue that is tried
// again and again behind a dead collector would only lose what is newer.
void OtlpExporter::send(std::vector<trace::Span> batch) {
  for (size_t at = 0; at < batch.size(); at += config_.max_batch) {
    const std::span<const trace::Span> piece(batch.data() + at, std::min(config_.max_batch, batch.size() - at));
    fetch::HttpCall call;
    call.url = config_.url;
    call.json = trace::otlp_json(piece);
    call.connect_timeout_s = call.stall_timeout_s = config_.stall_timeout_s;
    call.timeout_ms = static_cast<int>(1e3 * config_.stall_timeout_s);
    auto answer = fetch::http_call(call);
    const bool is_taken = answer && answer->status / 100 == 2;
    (is_taken ? sent_ : dropped_).add(piece.size());
    if (!is_taken && !std::exchange(has_warned_, true)) {
      log_warning("net/otlp", "the collector does not take spans; said once",
                  {{"url", fetch::printable_url(config_.url)},
                   {"why", answer ? "status " + std::to_string(answer->status) : answer.error().message}});
    }
    if (is_taken) has_warned_ = false;
    if (!is_taken && is_stopping()) {  // the process's end does not wait for a collector that does not answer
      dropped_.add(batch.size() - at - piece.size());
      return;
    }
  }
}

}  // namespace tandem::otlp
