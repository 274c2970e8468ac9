#include "api/openai/serving_gate.h"

#include <set>

#include "api/openai/openapi.h"
#include "api/openai/reply_shape.h"

namespace tandem::openai {
namespace {

const std::set<std::string, std::less<>> kOwnPaths = {"/health",  "/live",    "/ping",
                                                      "/version", "/metrics", "/openapi.json"};

}  // namespace

ServingGate::ServingGate(const MetricRegistry& registry, std::string version)
    : registry_(registry), version_(std::move(version)), router_(error_body_at) {
  using Writer = std::shared_ptr<http::ResponseWriter>;
  const auto health = [this](const http::HttpRequest& request, const Writer& writer) {
    if (is_serving())
      writer->send(200, {{"Content-Type", "application/json"}}, R"({"status":"ok"})");
    else
      refuse(*writer, request.path);
  };
  router_.add("GET", "/health", health);
  router_.add("GET", "/ping", health);
  router_.add("POST", "/ping", health);
  router_.add("GET", "/live", [](http::HttpRequest, Writer writer) {
    writer->send(200, {{"Content-Type", "application/json"}}, R"({"status":"ok"})");
  });
  router_.add("GET", "/version", [this](http::HttpRequest, Writer writer) {
    JsonWriter json;
    json.begin_object().key("version").string(version_).end_object();
    writer->send(200, {{"Content-Type", "application/json"}}, json.take());
  });
  router_.add("GET", "/openapi.json", [](http::HttpRequest, Writer writer) {
    writer->send(200, {{"Content-Type", "application/json"}}, std::string(openapi_json()));
  });
  router_.add("GET", "/metrics", [this](http::HttpRequest, Writer writer) {
    writer->send(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, registry_.exposition());
  });
}

void ServingGate::refuse(http::ResponseWriter& writer, std::string_view path) const {
  const char* message = is_draining_ ? "the server is shutting down" : "the model is loading";
  const ApiError error = api_error({ErrorCode::kUnavailable, message}, is_draining_ ? 5 : 1);
  writer.send(error.status, error_headers(error), error_body(error_kind_of(path), error));
}

void ServingGate::operator()(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) const {
  if (kOwnPaths.contains(request.path))
    router_(std::move(request), std::move(writer));
  else if (is_serving())
    api_.load()->handle(std::move(request), std::move(writer));
  else
    refuse(*writer, request.path);
}

}  // namespace tandem::openai
