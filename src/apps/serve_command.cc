#include <cstdio>

#include <fmt/format.h>

#include "api/openai/openai_api.h"
#include "api/openai/serving_gate.h"
#include "apps/signal_watcher.h"
#include "apps/subcommands.h"
#include "apps/version.h"
#include "apps/wiring.h"
#include "base/log.h"
#include "net/http/http_server.h"

namespace tandem::apps {
namespace {

constexpr double kSignalPoll_s = 3600;
constexpr int64_t kCloseTimeout_ms = 1000;  // for what is still to be written once all requests have ended

openai::ApiConfig api_config(const OptionValues& values, const std::string& model, const LoadedModel& loaded) {
  openai::ApiConfig config;
  config.defaults = loaded.sampling;
  config.system_fingerprint = "fp_" + loaded.runner->fingerprint();
  config.served_names = values.texts("served-model-name");
  if (config.served_names.empty()) config.served_names = {model};
  for (const std::string& key : values.texts("api-key")) {
    config.keys.push_back({fmt::format("key-{}", config.keys.size() + 1), key, 0});
  }
  config.max_logprobs = static_cast<uint32_t>(values.integer("max-logprobs"));
  config.parse_special = values.is_on("parse-special");
  if (values.has("seed")) config.seed = static_cast<uint64_t>(values.integer("seed"));
  return config;
}

// Everything that serves, taken down in the only order that is safe: no new calls, then no more tokens, then the API.
struct Serving {
  MetricRegistry registry;
  SystemClock clock;
  openai::ServingGate gate{registry, program_version()};
  LoadedModel model;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<openai::OpenAiApi> api;
  std::unique_ptr<http::HttpServer> server;

  ~Serving() {
    if (server != nullptr) server->stop(0);
    if (engine != nullptr) engine->stop();
    api.reset();
  }
};

Result<std::unique_ptr<http::HttpServer>> listen(const OptionValues& values, const openai::ServingGate& gate) {
  http::HttpServerConfig config;
  config.host = values.text("host");
  config.port = static_cast<uint16_t>(values.integer("port"));
  config.error_body = [](int status, std::string_view message) { return openai::error_json(status, message); };
  using Writer = std::shared_ptr<http::ResponseWriter>;
  return http::HttpServer::start(
      config, [&gate](http::HttpRequest request, Writer writer) { gate(std::move(request), std::move(writer)); });
}

void drain(Serving& serving, double timeout_s) {
  log_info("apps", "draining", {{"timeout_s", fmt::format("{}", timeout_s)}});
  serving.gate.drain();
  serving.engine->begin_drain();
  const bool is_idle = serving.engine->wait_idle(timeout_s);
  if (!is_idle) log_warning("apps", "requests were still running at the end of the drain timeout and are broken off");
  serving.engine->stop();  // what still runs ends with an error, which the clients are to get
  serving.server->stop(kCloseTimeout_ms);
}

}  // namespace

Result<int> run_serve(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  const std::string& model = invocation.positionals[0];
  SignalWatcher signals;
  Serving serving;
  // The port is taken first: a fault there should not cost the loading of a model. Meanwhile the gate answers.
  TRY_ASSIGN(serving.server, listen(values, serving.gate));
  TRY_ASSIGN(serving.model, load_model(model, values));
  const openai::ApiConfig config = api_config(values, model, serving.model);
  serving.engine = std::make_unique<engine::Engine>(
      engine_config(values, *serving.model.runner, config.served_names[0]), *serving.model.runner, serving.clock,
      serving.registry);
  serving.engine->start();
  serving.api = std::make_unique<openai::OpenAiApi>(*serving.engine, *serving.model.text, config, serving.registry,
                                                    serving.clock);
  serving.gate.open(*serving.api);
  signals.start_reporting();

  const std::string& host = values.text("host");
  const bool is_v6 = host.find(':') != std::string::npos;
  fmt::print("tandem: serving {} on http://{}{}{}:{}\n", config.served_names[0], is_v6 ? "[" : "", host,
             is_v6 ? "]" : "", serving.server->port());
  std::fflush(stdout);
  while (!signals.wait(kSignalPoll_s)) {
  }
  drain(serving, values.number("drain-timeout"));
  return kExitDone;
}

}  // namespace tandem::apps
