#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "apps/cluster_access.h"
#include "apps/cluster_facts.h"
#include "apps/node_metrics.h"
#include "apps/runner_memory.h"
#include "apps/signal_watcher.h"
#include "apps/span_output.h"
#include "apps/state_folder.h"
#include "apps/subcommands.h"
#include "apps/supervisor_channel.h"
#include "apps/wiring.h"
#include "base/log.h"
#include "cluster/node/node_process.h"
#include "cluster/node/step_history.h"
#include "plugins/cpu/team.h"
#include "serve/text/text_stop_rule.h"

namespace tandem::apps {
namespace {

constexpr double kLook_s = 0.2;  // at what an operator has said
// What a connection still moves beside others on busy cores: a hand-off that takes twice as long is given up. A peer
// that is gone shows much sooner.
constexpr double kLeastPushRate = 100e6;
constexpr useconds_t kIdleLook_us = 20'000;

std::string node_name(const OptionValues& values) {
  return values.has("name") ? values.text("name") : fmt::format("{}-{}", values.text("role"), getpid());
}

// Half of the pool for decodes and half for prefills and the cache, whatever the role: a node that survives does both,
// and roles change. Of the second half the copies for decodes elsewhere may take half, if no option says otherwise.
kv::PoolShape pool_shape(const runner::ModelRunner& runner) {
  return {runner.num_blocks(), runner.num_blocks() / 2, runner.block_tokens()};
}

// --mirror-tokens in whole blocks. What a holder keeps is in the shared part.
uint32_t max_pinned_blocks(const OptionValues& values, const runner::ModelRunner& runner) {
  if (!values.has("mirror-tokens")) return runner.num_blocks() / 4;
  const int64_t blocks = (values.integer("mirror-tokens") + runner.block_tokens() - 1) / runner.block_tokens();
  return static_cast<uint32_t>(std::min<int64_t>(blocks, runner.num_blocks() / 2));
}

handoff::Fingerprint fingerprint_of(const runner::ModelRunner& runner, std::string weights) {
  const td_kv_layout& kv = runner.kv_layout();
  handoff::Fingerprint fingerprint;
  fingerprint.weights = std::move(weights);
  fingerprint.kv_layout = fmt::format("{}/{}/{}", kv.block_stride, kv.layer_stride, kv.head_stride);
  fingerprint.kv_dtype = std::to_string(kv.kind);
  fingerprint.numerics = runner.fingerprint();
  fingerprint.block_size = kv.block_tokens;
  fingerprint.num_layers = kv.num_layers;
  fingerprint.num_kv_heads = kv.num_kv_heads;
  return fingerprint;
}

node::NodeProcessConfig node_config(const OptionValues& values, const StateFolder& folder,
                                    const LoadedModel& model, const RunnerMemory& kv) {
  const runner::ModelRunner& runner = *model.runner;
  const sched::SchedulerConfig sched = engine_config(values, model, {}).sched;
  node::NodeProcessConfig config;
  config.policy.self.id = node_name(values);
  config.policy.role = *registry::role_of(values.text("role"));
  config.policy.pool = pool_shape(runner);
  config.policy.num_layer_groups = num_layer_groups(runner);
  config.policy.max_pinned_blocks = max_pinned_blocks(values, runner);
  config.policy.caches_prefixes = values.is_on("enable-prefix-caching");
  config.policy.push_bytes_per_s = kLeastPushRate;
  config.policy.bytes_per_block = kv.part_bytes() * num_layer_groups(runner);
  config.engine.block_size = runner.block_tokens();
  config.engine.num_layer_groups = num_layer_groups(runner);
  if (values.text("push") == "layer") {
    config.engine.layers_per_group = runner.config().num_layers / num_layer_groups(runner);
  }
  config.engine.max_sequences = sched.max_num_seqs;
  config.engine.budget.max_tokens = sched.max_num_batched_tokens;
  config.engine.budget.target_s = sched.tpot_target_ms * 1e-3;
  config.engine.eos_ids = sched.eos_ids;
  config.control_host = values.text("control-host");
  config.control_port = static_cast<uint16_t>(values.integer("control-port"));
  config.data_address = values.has("data-address") ? values.text("data-address")
                                                   : "shm:" + folder.socket(config.policy.self.id);
  config.kv_bytes_per_s = static_cast<uint64_t>(values.integer("kv-rate"));
  // Without --threads the engine takes all cores.
  config.has_spare_core =
      values.has("threads") && values.integer("threads") > 0 && values.integer("threads") < cpu::num_usable_cores();
  return config;
}

node::StopRuleMaker stop_rules(const text::Tokenizer& tokenizer) {
  return [&tokenizer](const handoff::RequestState& state) -> std::unique_ptr<sched::StopRule> {
    if (state.stop_strings.empty()) return nullptr;
    const text::OutputTextOptions shown = {state.stop_strings, false, !state.shows_special};
    return std::make_unique<text::TextStopRule>(tokenizer, shown, state.prompt);
  };
}

// The grammar's compilation begins at once, on a thread of its own, while the prompt is computed.
node::MaskMaker masks(text::GrammarCompiler& grammars) {
  return [&grammars](const sched::Grammar& grammar) { return grammars.masks_ahead(grammar); };
}

// Until a signal comes or an operator takes the node out.
void wait_for_end(SignalWatcher& signals, const node::NodeProcess& node) {
  while (!signals.wait(kLook_s) && !node.is_told_to_drain()) {
  }
}

void drain(node::NodeProcess& node, double timeout_s) {
  log_info("apps", "draining", {{"timeout_s", fmt::format("{}", timeout_s)}});
  node.drain();
  const SystemClock clock;
  const double end_s = clock.now_s() + timeout_s;
  while (!node.is_idle() && clock.now_s() < end_s) usleep(kIdleLook_us);
  if (!node.is_idle()) log_warning("apps", "requests were still here at the end of the drain timeout");
  node.stop();
}

}  // namespace

Result<int> run_node(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  SignalWatcher signals;
  SupervisorChannel supervisor;
  TRY(check_name("node", node_name(values)));
  TRY_ASSIGN(const StateFolder folder, StateFolder::open(values.text("cluster")));
  TRY_ASSIGN(std::optional<rpc::TlsFiles> tls, cluster_tls(values));
  TRY_ASSIGN(const std::unique_ptr<registry::Registry> registry, open_registry(values, folder));
  TRY_ASSIGN(const LoadedModel model, load_model(invocation.positionals[0], values, true));
  TRY_ASSIGN(const std::unique_ptr<RunnerMemory> kv, RunnerMemory::over(*model.runner));
  const uint32_t room = std::min(model.runner->max_model_len(),
                                 model.runner->num_blocks() / 4 * model.runner->block_tokens());
  TRY(tell_cluster_facts(*registry, {room, model.runner->fingerprint()}));
  const SystemClock clock;
  MetricRegistry metrics;
  node::StepHistory steps(*model.runner, clock, metrics);
  TRY_ASSIGN(const std::unique_ptr<NodeMetrics> shown, NodeMetrics::open(values, metrics, steps));
  text::GrammarCompiler grammars(model.text->tokenizer, grammar_config(model.runner->config(), *model.text), metrics);
  node::NodeProcessConfig config = node_config(values, folder, model, *kv);
  config.engine.make_masks = masks(grammars);
  grammars.begin();
  SpanOutput spans(values, metrics);
  spans.set_process(config.policy.self.id);
  config.spans = &spans;
  config.rpc.tls = std::move(tls);
  if (shown != nullptr) config.metrics_url = shown->url();
  config.policy.fingerprint = fingerprint_of(*model.runner, model.weights_hash);
  TRY_ASSIGN(const std::unique_ptr<node::NodeProcess> node,
             node::NodeProcess::start(std::move(config), steps, *kv, *registry,
                                      stop_rules(model.text->tokenizer), clock, metrics));
  if (shown != nullptr) shown->set_ready(true);
  signals.start_reporting();
  log_info("apps", "node ready",
           {{"node", node->self().id},
            {"role", values.text("role")},
            {"control_port", std::to_string(node->control_port())},
            {"kv_blocks", std::to_string(model.runner->num_blocks())},
            {"max_model_len", std::to_string(room)}});
  supervisor.look_before_beats([&node] { return fmt::format("requests {}", node->load().num_requests); });
  supervisor.say("ready");
  wait_for_end(signals, *node);
  if (shown != nullptr) shown->set_ready(false);
  drain(*node, values.number("drain-timeout"));
  supervisor.look_before_beats({});
  return kExitDone;
}

}  // namespace tandem::apps
