#include "apps/node_metrics.h"

#include <utility>

#include "api/openai/reply_shape.h"
#include "apps/front.h"

namespace tandem::apps {

using Writer = std::shared_ptr<http::ResponseWriter>;

NodeMetrics::NodeMetrics(const MetricRegistry& registry, const node::StepHistory& steps)
    : router_(openai::error_body_at) {
  router_.add("GET", "/metrics", [&registry](http::HttpRequest, Writer writer) {
    writer->send(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, registry.exposition());
  });
  router_.add("GET", "/steps", [&steps](http::HttpRequest, Writer writer) {
    writer->send(200, {{"Content-Type", "application/json"}}, steps.json());
  });
  router_.add("GET", "/health", [this](http::HttpRequest, Writer writer) {
    const bool is_ready = is_ready_;
    writer->send(is_ready ? 200 : 503, {{"Content-Type", "application/json"}},
                 is_ready ? R"({"status":"ok"})" : R"({"status":"not ready"})");
  });
}

Result<std::unique_ptr<NodeMetrics>> NodeMetrics::open(const OptionValues& values, const MetricRegistry& registry,
                                                       const node::StepHistory& steps) {
  if (!values.has("metrics-port")) return std::unique_ptr<NodeMetrics>();
  std::unique_ptr<NodeMetrics> metrics(new NodeMetrics(registry, steps));
  http::HttpServerConfig config;
  config.host = values.text("metrics-host");
  config.port = static_cast<uint16_t>(values.integer("metrics-port"));
  TRY_ASSIGN(metrics->server_, http::HttpServer::start(config, [self = metrics.get()](auto request, Writer writer) {
               self->router_(std::move(request), std::move(writer));
             }));
  metrics->url_ = url_of(config.host, metrics->server_->port()) + "/metrics";
  return metrics;
}

}  // namespace tandem::apps
