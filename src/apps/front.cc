#include "apps/front.h"

#include <cstdio>

#include <fmt/format.h>

#include "api/openai/api_error.h"

namespace tandem::apps {

openai::ApiConfig api_config(const OptionValues& values, const FrontModel& model) {
  openai::ApiConfig config;
  config.defaults = model.sampling;
  config.system_fingerprint = "fp_" + model.fingerprint;
  config.served_names = values.texts("served-model-name");
  if (config.served_names.empty()) config.served_names = {model.name};
  for (const std::string& key : values.texts("api-key")) {
    config.keys.push_back({fmt::format("key-{}", config.keys.size() + 1), key, 0});
  }
  config.max_logprobs = static_cast<uint32_t>(values.integer("max-logprobs"));
  config.tool_call_format = text::tool_call_format_named(values.text("tool-call-parser"));  // auto: none
  config.parse_special = values.is_on("parse-special");
  config.ping_interval_ms = static_cast<int64_t>(values.number("ping-interval") * 1e3);
  if (values.find("pooling") != nullptr && values.text("pooling") == "mean") config.pooling = sched::Pooling::kMean;
  if (values.has("seed")) config.seed = static_cast<uint64_t>(values.integer("seed"));
  return config;
}

Result<std::unique_ptr<http::HttpServer>> listen(const OptionValues& values, http::Handler handler) {
  http::HttpServerConfig config;
  config.host = values.text("host");
  config.port = static_cast<uint16_t>(values.integer("port"));
  config.error_body = [](int status, std::string_view message) { return openai::error_json(status, message); };
  return http::HttpServer::start(config, std::move(handler));
}

std::string url_of(const std::string& host, uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

void say_serving(const std::string& name, const std::string& url) {
  fmt::print("tandem: serving {} on {}\n", name, url);
  std::fflush(stdout);
}

}  // namespace tandem::apps
