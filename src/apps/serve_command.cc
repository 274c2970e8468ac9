#include "api/openai/openai_api.h"
#include "api/openai/serving_gate.h"
#include "apps/effective_settings.h"
#include "apps/front.h"
#include "apps/signal_watcher.h"
#include "apps/subcommands.h"
#include "apps/version.h"
#include "apps/wiring.h"
#include "net/http/http_server.h"

namespace tandem::apps {
namespace {

constexpr double kSignalPoll_s = 3600;

// Everything that serves, taken down in the only order that is safe: no new calls, then no more tokens, then the API.
struct Serving {
  MetricRegistry registry;
  SystemClock clock;
  openai::ServingGate gate{registry, program_version()};
  LoadedModel model;
  std::unique_ptr<text::GrammarCompiler> grammars;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<openai::OpenAiApi> api;
  std::unique_ptr<http::HttpServer> server;

  ~Serving() {
    if (server != nullptr) server->stop(0);
    if (engine != nullptr) engine->stop();
    api.reset();
  }
};

}  // namespace

Result<int> run_serve(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  const std::string& model = invocation.positionals[0];
  SignalWatcher signals;
  Serving serving;
  TRY_ASSIGN(const std::vector<openai::ApiKey> keys, api_keys(values));
  TRY_ASSIGN(http::Handler handler, api_handler(values, serving.gate));
  // The port is taken first: a fault there should not cost the loading of a model. Meanwhile the gate answers.
  TRY_ASSIGN(serving.server, listen(values, std::move(handler)));
  TRY_ASSIGN(serving.model, load_model(model, values));
  openai::ApiConfig config = api_config(
      values, {model, serving.model.sampling, serving.model.runner->fingerprint()}, keys);
  engine::EngineConfig settings = engine_config(values, serving.model, config.served_names[0]);
  settings.sched.tenant_weights = tenant_weights(keys);
  const EffectiveLimits limits = effective_limits(settings.sched);
  limits.log();
  config.settings = settings_json(values, limits);
  serving.engine =
      std::make_unique<engine::Engine>(settings, *serving.model.runner, serving.clock, serving.registry);
  serving.engine->start();
  const text::TextModel& words = *serving.model.text;
  serving.grammars = std::make_unique<text::GrammarCompiler>(
      words.tokenizer, grammar_config(serving.model.runner->config(), words), serving.registry);
  serving.api = std::make_unique<openai::OpenAiApi>(*serving.engine, *serving.model.text, config, serving.registry,
                                                    serving.clock, serving.grammars.get());
  serving.gate.open(*serving.api);
  signals.start_reporting();

  say_serving(config.served_names[0], url_of(values, serving.server->port()));
  while (!signals.wait(kSignalPoll_s)) {
  }
  drain_front(serving.gate, *serving.engine, *serving.server, values.number("drain-timeout"));
  return kExitDone;
}

}  // namespace tandem::apps
