#pragma once
// OtlpExporter: spans to a collector, as OTLP/HTTP with JSON, in batches on a thread of its own. Whoever records never
// waits: what comes while the queue is full is dropped and counted.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "trace/span.h"

namespace tandem::otlp {

struct OtlpConfig {
  std::string url;             // whole, as http://127.0.0.1:4318/v1/traces
  size_t max_waiting = 8192;   // spans
  size_t max_batch = 512;
  double batch_s = 1;          // a batch waits so long for more
  int stall_timeout_s = 5;
};

class OtlpExporter final : public trace::SpanSink {
 public:
  // `metrics` outlives it.
  OtlpExporter(OtlpConfig config, MetricRegistry& metrics);
  ~OtlpExporter() override;  // sends what waits, once

  // Any thread. A span whose client asked not to be sampled is left out.
  void record(const trace::Span& span) override;

 private:
  void run();
  void send(std::vector<trace::Span> batch);
  bool is_stopping();

  const OtlpConfig config_;
  Counter &sent_, &dropped_;
  bool has_warned_ = false;  // of the thread

  Mutex mutex_;
  CondVar wake_;
  std::vector<trace::Span> waiting_ GUARDED_BY(mutex_);
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::otlp
