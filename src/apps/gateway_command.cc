#include <atomic>
#include <optional>

#include <fmt/format.h>

#include "api/cluster/cluster_api.h"
#include "api/openai/openai_api.h"
#include "api/openai/serving_gate.h"
#include "apps/cluster_access.h"
#include "apps/cluster_facts.h"
#include "apps/effective_settings.h"
#include "apps/front.h"
#include "apps/signal_watcher.h"
#include "apps/span_output.h"
#include "apps/state_folder.h"
#include "apps/subcommands.h"
#include "apps/supervisor_channel.h"
#include "apps/version.h"
#include "apps/wiring.h"
#include "base/log.h"
#include "cluster/gateway/gateway_process.h"

namespace tandem::apps {
namespace {

constexpr double kPoll_s = 0.1, kMeet_s = 0.02;
constexpr double kSignalPoll_s = 3600;

class GatewayControl final : public cluster_api::ClusterControl {
 public:
  GatewayControl(gateway::GatewayProcess& gateway, const SpanOutput& spans) : gateway_(gateway), spans_(spans) {}
  std::string status_json() override { return gateway_.status_json(); }
  std::string trace_json() override { return spans_.chrome_json(); }
  Status drain(const std::string& node) override { return gateway_.drain(node); }
  Result<uint64_t> set_role(const std::string& node, handoff::Role role) override {
    return gateway_.set_role(node, role);
  }

 private:
  gateway::GatewayProcess& gateway_;
  const SpanOutput& spans_;
};

// Taken down in the order of Serving in serve_command.cc: no new calls, then no more tokens, then the API.
struct Front {
  Front(const OptionValues& values, std::string admin_key)
      : spans(values, metrics), cluster_api(std::move(admin_key)) {}

  MetricRegistry metrics;
  SpanOutput spans;
  SystemClock clock;
  openai::ServingGate gate{metrics, program_version()};
  http::Handler api_handler;
  cluster_api::ClusterApi cluster_api;
  LoadedText model;
  std::unique_ptr<text::GrammarCompiler> grammars;  // checks; the nodes have theirs
  std::unique_ptr<gateway::GatewayProcess> gateway;
  std::optional<GatewayControl> control;
  std::unique_ptr<openai::OpenAiApi> api;
  std::unique_ptr<http::HttpServer> server;

  ~Front() {
    if (server != nullptr) server->stop(0);
    if (gateway != nullptr) gateway->stop();
    api.reset();
  }

  void operator()(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) const {
    if (cluster_api::ClusterApi::is_own_path(request.path)) cluster_api(std::move(request), std::move(writer));
    else api_handler(std::move(request), std::move(writer));
  }
};

// Until a node has told them; a signal meanwhile ends the process (SignalWatcher). The registry is looked at over and
// over: it may come later than this process.
ClusterFacts wait_for_facts(registry::Registry& registry, SignalWatcher& signals) {
  for (bool is_said = false;; signals.wait(kPoll_s)) {
    const auto polled = registry.poll(0);
    if (polled && polled.value()) {
      if (const auto facts = cluster_facts_in(*polled.value())) return *facts;
    }
    if (!is_said) log_info("apps", "waiting for a node to join");
    is_said = true;
  }
}

gateway::GatewayProcessConfig gateway_config(const OptionValues& values, const model::ModelConfig& model,
                                             const ClusterFacts& facts, const std::string& name, SpanOutput& spans) {
  gateway::GatewayProcessConfig config;
  config.policy.self.id = "gateway";
  spans.set_process(config.policy.self.id);
  config.spans = &spans;
  config.policy.router = router::RouterConfig{.policy = *router::policy_of(values.text("router-policy"))};
  config.model_name = name;
  config.limits.max_model_len = facts.max_model_len;
  if (values.has("max-model-len")) {
    config.limits.max_model_len =
        std::min(config.limits.max_model_len, static_cast<uint32_t>(values.integer("max-model-len")));
  }
  config.limits.vocab_size = model.vocab;
  config.limits.max_logprobs = static_cast<uint32_t>(values.integer("max-logprobs"));
  config.max_queue_length = static_cast<uint32_t>(values.integer("max-queue-length"));
  config.max_queued_per_tenant = static_cast<uint32_t>(values.integer("max-queue-per-key"));
  config.max_queued_tokens = static_cast<uint64_t>(values.integer("max-queue-tokens"));
  config.max_queue_s = values.number("max-queue-time");
  return config;
}

}  // namespace

Result<int> run_gateway(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  SignalWatcher signals;
  SupervisorChannel supervisor;
  TRY_ASSIGN(std::string key, admin_key(values));
  TRY_ASSIGN(const StateFolder folder, StateFolder::open(values.text("cluster")));
  TRY_ASSIGN(std::optional<rpc::TlsFiles> tls, cluster_tls(values));
  TRY_ASSIGN(const std::unique_ptr<registry::Registry> registry, open_registry(values, folder));
  Front front(values, std::move(key));
  TRY_ASSIGN(const std::vector<openai::ApiKey> keys, api_keys(values));
  TRY_ASSIGN(front.api_handler, api_handler(values, front.gate));
  // The port is taken first, as in serve.
  TRY_ASSIGN(front.server, listen(values, [&front](http::HttpRequest request, auto writer) {
               front(std::move(request), std::move(writer));
             }));
  TRY_ASSIGN(front.model, load_text(invocation.positionals[0], values));
  const ClusterFacts facts = wait_for_facts(*registry, signals);
  openai::ApiConfig config =
      api_config(values, {invocation.positionals[0], front.model.sampling, facts.fingerprint}, keys);
  gateway::GatewayProcessConfig process =
      gateway_config(values, front.model.config, facts, config.served_names[0], front.spans);
  EffectiveLimits limits;
  limits.max_model_len = process.limits.max_model_len;
  limits.max_queue_length = process.max_queue_length;
  limits.log();
  config.settings = settings_json(values, limits);
  process.rpc.tls = std::move(tls);
  process.policy.tenant_weights = tenant_weights(keys);
  TRY_ASSIGN(front.gateway,
             gateway::GatewayProcess::start(std::move(process), *registry, front.clock, front.metrics));
  front.control.emplace(*front.gateway, front.spans);
  front.grammars = std::make_unique<text::GrammarCompiler>(
      front.model.text->tokenizer, grammar_config(front.model.config, *front.model.text), front.metrics);
  front.api = std::make_unique<openai::OpenAiApi>(*front.gateway, *front.model.text, config, front.metrics, front.clock,
                                                  front.grammars.get());
  front.cluster_api.open(*front.control);
  supervisor.look_before_beats([&front] { return "status " + front.gateway->status_json(); });
  // Whoever finds the API open finds nodes behind it. A signal meanwhile ends the process.
  while (!front.gateway->can_serve()) signals.wait(kMeet_s);
  front.gate.open(*front.api);
  signals.start_reporting();

  const std::string url = url_of(values, front.server->port());
  supervisor.say("ready " + url);
  say_serving(config.served_names[0], url);
  while (!signals.wait(kSignalPoll_s)) {
  }
  drain_front(front.gate, *front.gateway, *front.server, values.number("drain-timeout"));
  supervisor.look_before_beats({});
  return kExitDone;
}

}  // namespace tandem::apps
