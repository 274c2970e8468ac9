#pragma once
// NodeMetrics: GET /metrics, /health and /steps (its newest steps) of a node, on a port of
// their own (--metrics-port, --metrics-host).

#include <atomic>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/options.h"
#include "base/result.h"
#include "cluster/node/step_history.h"
#include "net/http/http_server.h"
#include "net/http/router.h"

namespace tandem::apps {

// Serves from its start on. Registry and history outlive it.
class NodeMetrics {
 public:
  // Null without --metrics-port. kUnavailable: the address cannot be bound.
  static Result<std::unique_ptr<NodeMetrics>> open(const OptionValues& values, const MetricRegistry& registry,
                                                   const node::StepHistory& steps);

  const std::string& url() const { return url_; }  // of /metrics
  // What /health says: 200 while ready, else 503. Any thread.
  void set_ready(bool is_ready) { is_ready_ = is_ready; }

 private:
  NodeMetrics(const MetricRegistry& registry, const node::StepHistory& steps);

  http::Router router_;
  std::atomic<bool> is_ready_ = false;
  std::string url_;
  std::unique_ptr<http::HttpServer> server_;  // last: it uses the rest
};

}  // namespace tandem::apps
