#pragma once
// ServingGate: the server's handler from its first moment on: while the model loads and while the server drains it
// answers for the API. It knows the paths that work without a model: /health, /live, /ping, /version, /metrics,
// /openapi.json.

#include <atomic>
#include <memory>
#include <string>

#include "api/openai/openai_api.h"
#include "base/metrics.h"
#include "net/http/http_types.h"

namespace tandem::openai {

// Any thread. Outlives the server that calls it.
class ServingGate {
 public:
  ServingGate(const MetricRegistry& registry, std::string version);

  // The model is there; `api` outlives the server.
  void open(OpenAiApi& api) { api_ = &api; }
  // New work is refused with 503; what is under way goes on. Not undone.
  void drain() { is_draining_ = true; }
  bool is_serving() const { return api_ != nullptr && !is_draining_; }

  void operator()(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) const;

 private:
  void refuse(http::ResponseWriter& writer, std::string_view path) const;

  const MetricRegistry& registry_;
  const std::string version_;
  http::Router router_;
  std::atomic<OpenAiApi*> api_{nullptr};
  std::atomic<bool> is_draining_{false};
};

}  // namespace tandem::openai
