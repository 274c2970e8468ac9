#include "apps/front.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "api/openai/api_error.h"
#include "api/openai/key_file.h"
#include "api/openai/reply_shape.h"
#include "apps/secret_file.h"
#include "base/mapped_file.h"
#include "net/http/cors.h"

namespace tandem::apps {

Result<std::vector<openai::ApiKey>> api_keys(const OptionValues& values) {
  std::vector<openai::ApiKey> keys;
  TRY_ASSIGN(const std::string path, path_or_empty(values, "api-key-file"));
  if (!path.empty()) {
    TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
    warn_if_open_to_others(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    auto parsed = openai::parse_key_file(text);
    if (!parsed) return std::move(parsed).error().during(path);
    keys = std::move(parsed).value();
  }
  size_t number = 0;
  for (const std::string& key : values.texts("api-key")) {
    const std::string name = fmt::format("key-{}", ++number);
    const auto is_taken = [&](const openai::ApiKey& known) { return known.name == name || known.key == key; };
    if (std::ranges::any_of(keys, is_taken)) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--api-key: key {} is one of another key, or --api-key-file has a {}", number, name)};
    }
    keys.push_back({name, key});
  }
  return keys;
}

std::map<std::string, double> tenant_weights(const std::vector<openai::ApiKey>& keys) {
  std::map<std::string, double> weights;
  for (const openai::ApiKey& key : keys) weights[key.name] = key.weight;
  return weights;
}

openai::ApiConfig api_config(const OptionValues& values, const FrontModel& model, std::vector<openai::ApiKey> keys) {
  openai::ApiConfig config;
  config.defaults = model.sampling;
  config.system_fingerprint = "fp_" + model.fingerprint;
  config.served_names = values.texts("served-model-name");
  if (config.served_names.empty()) config.served_names = {model.name};
  config.keys = std::move(keys);
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
  config.error_body = openai::error_body_at;
  http::TlsFiles tls;
  TRY_ASSIGN(tls.certificate, path_or_empty(values, "tls-cert"));
  TRY_ASSIGN(tls.private_key, path_or_empty(values, "tls-key"));
  if (tls.certificate.empty() != tls.private_key.empty()) {
    return Error{ErrorCode::kInvalidArgument, "--tls-cert and --tls-key are given together"};
  }
  if (!tls.certificate.empty()) {
    warn_if_open_to_others(tls.private_key);
    config.tls = std::move(tls);
  }
  return http::HttpServer::start(config, std::move(handler));
}

Result<http::Handler> api_handler(const OptionValues& values, const openai::ServingGate& gate) {
  const std::vector<std::string>& origins = values.texts("cors-origin");
  for (const std::string& origin : origins) {
    if (const Status is_good = http::check_origin(origin); !is_good) {
      return Error(is_good.error()).during("--cors-origin");
    }
  }
  return http::with_cors(origins, [&gate](http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) {
    gate(std::move(request), std::move(writer));
  });
}

std::string url_of(const std::string& host, uint16_t port, std::string_view scheme) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", scheme, is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

std::string url_of(const OptionValues& values, uint16_t port) {
  return url_of(values.text("host"), port, values.has("tls-cert") ? "https" : "http");
}

void say_serving(const std::string& name, const std::string& url) {
  fmt::print("tandem: serving {} on {}\n", name, url);
  std::fflush(stdout);
}

}  // namespace tandem::apps
