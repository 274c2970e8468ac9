#pragma once
// The HTTP front of a process, whoever makes the tokens: shared by serve and gateway, so that both mean the same by an
// option.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "api/openai/openai_api.h"
#include "api/openai/serving_gate.h"
#include "base/log.h"
#include "base/options.h"
#include "net/http/http_server.h"

namespace tandem::apps {

struct FrontModel {
  std::string name;  // as typed
  openai::SamplingDefaults sampling;
  std::string fingerprint;
};

// Of --api-key and --api-key-file.
Result<std::vector<openai::ApiKey>> api_keys(const OptionValues& values);
std::map<std::string, double> tenant_weights(const std::vector<openai::ApiKey>& keys);

openai::ApiConfig api_config(const OptionValues& values, const FrontModel& model, std::vector<openai::ApiKey> keys);

// The gate, for pages of --cors-origin too. `gate` outlives it.
Result<http::Handler> api_handler(const OptionValues& values, const openai::ServingGate& gate);

// On --host and --port, through TLS with --tls-cert and --tls-key.
Result<std::unique_ptr<http::HttpServer>> listen(const OptionValues& values, http::Handler handler);

// "http://127.0.0.1:8000"; of the options' host, and https with --tls-cert.
std::string url_of(const std::string& host, uint16_t port, std::string_view scheme = "http");
std::string url_of(const OptionValues& values, uint16_t port);

// The line that says that `name` is served, on stdout.
void say_serving(const std::string& name, const std::string& url);

// Lets what runs end until `timeout_s`, breaks the rest off, and ends the server. Generator: engine::Engine or
// gateway::GatewayProcess.
template <class Generator>
void drain_front(openai::ServingGate& gate, Generator& generator, http::HttpServer& server, double timeout_s) {
  constexpr int64_t kCloseTimeout_ms = 1000;  // for what is still to be written once all requests have ended
  log_info("apps", "draining", {{"timeout_s", fmt::format("{}", timeout_s)}});
  gate.drain();
  generator.begin_drain();
  const bool is_idle = generator.wait_idle(timeout_s);
  if (!is_idle) log_warning("apps", "requests were still running at the end of the drain timeout and are broken off");
  generator.stop();  // what still runs ends with an error, which the clients are to get
  server.stop(kCloseTimeout_ms);
}

}  // namespace tandem::apps
