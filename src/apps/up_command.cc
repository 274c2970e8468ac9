#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "apps/cluster_access.h"
#include "apps/cluster_screen.h"
#include "apps/front.h"
#include "apps/model_source.h"
#include "apps/signal_watcher.h"
#include "apps/state_folder.h"
#include "apps/subcommands.h"
#include "base/clock.h"
#include "cluster/registry/registry.h"
#include "cluster/supervisor/core_plan.h"
#include "cluster/supervisor/supervisor.h"
#include "cluster/supervisor/topology.h"
#include "cluster/supervisor/unix_processes.h"
#include "net/transport/owned_fd.h"
#include "plugins/cpu/team.h"
#include "serve/runner/memory_budget.h"

namespace tandem::apps {
namespace {

constexpr double kStep_s = 0.1;
constexpr int64_t kNodeGrace_ns = 10'000'000'000;  // its requests ended with the gateway
constexpr double kGraceBesideDrain_s = 10;
constexpr const char* kGateway = "gateway";
constexpr double kKvShare = 0.4;  // as one process takes

std::string own_path() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : std::string("/proc/self/exe");
}

std::string flag_text(const OptionSpec& spec, const OptionValues& values) {
  switch (spec.type) {
    case OptionType::kText:
    case OptionType::kChoice: return values.text(spec.name);
    case OptionType::kTextList: return fmt::format("{}", fmt::join(values.texts(spec.name), ","));
    case OptionType::kIntegerList: return fmt::format("{}", fmt::join(values.integers(spec.name), ","));
    case OptionType::kInteger:
    case OptionType::kBytes: return std::to_string(values.integer(spec.name));
    case OptionType::kNumber: return fmt::format("{}", values.number(spec.name));
    case OptionType::kSwitch: return values.is_on(spec.name) ? "on" : "off";
  }
  return {};
}

// What was chosen here and `command` takes too, as flags, but for what each child has of its own; keys as variables,
// since others can read a command line.
void pass_on(const OptionValues& values, const char* command, supervisor::ChildSpec& child) {
  for (const OptionSpec& spec : cli::find_command(command)->all_options()) {
    const bool is_chosen = values.find(spec.name) != nullptr && values.has(spec.name) &&
                           values.source(spec.name) != OptionSource::kDefault;
    if (!is_chosen || spec.name == "config" || spec.name == "metrics-port") continue;
    if (spec.name == "trace-file" && command != std::string_view(kGateway)) continue;  // it has the nodes' parts
    const std::string text = flag_text(spec, values);
    if (spec.name == "api-key" || spec.name == "otlp-endpoint") {  // which may have a key in it
      child.variables.push_back("TANDEM_" + environment_name(spec.name) + "=" + text);
    } else if (spec.type == OptionType::kSwitch) {
      child.arguments.push_back(fmt::format("--{}{}", text == "on" ? "" : "no-", spec.name));
    } else {
      child.arguments.push_back(fmt::format("--{}={}", spec.name, text));
    }
  }
}

supervisor::ChildSpec gateway_spec(const std::string& model, const OptionValues& values, const StateFolder& folder) {
  supervisor::ChildSpec child;
  child.name = kGateway;
  child.arguments = {"gateway", model};
  pass_on(values, "gateway", child);
  child.log_path = folder.log(child.name);
  child.stop_grace_ns = static_cast<int64_t>((values.number("drain-timeout") + kGraceBesideDrain_s) * 1e9);
  return child;
}

std::vector<supervisor::ChildSpec> node_specs(const std::string& model, const OptionValues& values,
                                              const StateFolder& folder) {
  const std::vector<supervisor::NamedNode> nodes =
      supervisor::nodes_of(supervisor::parse_topology(values.text("topology")).value());
  const auto num_nodes = static_cast<uint32_t>(nodes.size());
  const auto num_threads = values.has("threads") ? static_cast<uint32_t>(values.integer("threads")) : 0;
  const auto plan = supervisor::core_plan(cpu::usable_cores(), num_nodes, num_threads);
  const bool sizes_pool = values.has("kv-memory") || values.has("kv-blocks");
  const double kv_bytes = kKvShare * static_cast<double>(runner::available_memory_bytes()) / num_nodes;
  std::vector<supervisor::ChildSpec> children;
  for (uint32_t i = 0; i < num_nodes; ++i) {
    supervisor::ChildSpec child;
    child.name = nodes[i].name;
    child.arguments = {"node", model, "--name=" + child.name,
                       fmt::format("--role={}", registry::role_name(nodes[i].role))};
    pass_on(values, "node", child);
    if (values.has("metrics-port")) {
      const int64_t first = values.integer("metrics-port");
      child.arguments.push_back(fmt::format("--metrics-port={}", first == 0 ? 0 : first + i));
    }
    if (num_threads == 0) child.arguments.push_back(fmt::format("--threads={}", plan[i].num_threads));
    if (!sizes_pool && kv_bytes >= 1) child.arguments.push_back(fmt::format("--kv-memory={:.0f}", kv_bytes));
    child.cores = plan[i].cores;
    child.log_path = folder.log(child.name);
    child.may_leave = true;
    child.stop_stage = 1;
    child.stop_grace_ns = kNodeGrace_ns;
    children.push_back(std::move(child));
  }
  return children;
}

// One `up` a cluster: held while it runs.
Result<transport::OwnedFd> lock_cluster(const StateFolder& folder, const std::string& cluster) {
  transport::OwnedFd lock(open(folder.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return Error{ErrorCode::kUnavailable, "cannot open " + folder.lock()};
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("cluster {} is up already; a second one needs another --cluster NAME", cluster)};
  }
  return lock;
}

// What the last run left: nobody of it lives, since the lock is held.
void remove_leftovers(const StateFolder& folder, const std::vector<supervisor::ChildSpec>& children) {
  unlink(folder.registry().c_str());
  unlink(folder.gateway_address().c_str());
  for (const supervisor::ChildSpec& child : children) {
    unlink(folder.socket(child.name).c_str());
    unlink(child.log_path.c_str());
  }
}

class UpSession {
 public:
  UpSession(const cli::Invocation& invocation, const StateFolder& folder, std::vector<supervisor::ChildSpec> children)
      : values_(invocation.values),
        model_(invocation.positionals[0]),
        folder_(folder),
        processes_(own_path()),
        supervisor_({}, std::move(children), processes_, clock_) {}
  ~UpSession() { unlink(folder_.gateway_address().c_str()); }

  Result<int> run(SignalWatcher& signals) {
    signals.start_reporting();
    while (!supervisor_.is_done()) {
      supervisor_.step(kStep_s);
      if (!supervisor_.is_stopping() && signals.wait(0)) {
        screen_.say("stopping");
        supervisor_.begin_stop();
      }
      show();
    }
    if (supervisor_.failure()) return Error(*supervisor_.failure());
    return kExitDone;
  }

 private:
  void show() {
    for (const std::string& line : supervisor_.take_news()) screen_.say(line);
    supervisor::Child& gateway = *supervisor_.find(kGateway);
    if (gateway.phase == supervisor::ChildPhase::kReady && gateway.ready_text != url_) on_address(gateway);
    if (!is_serving_said_ && !url_.empty() && supervisor_.are_all_ready() &&
        has_met_all(supervisor_.children())) {
      is_serving_said_ = true;
      const std::vector<std::string>& names = values_.texts("served-model-name");
      screen_.clear();
      say_serving(names.empty() ? model_ : names[0], url_);
    }
    screen_.draw(supervisor_, clock_.now_ns());
  }

  // A gateway that is started again gets the port that clients know, also when any free one was asked for.
  void on_address(supervisor::Child& gateway) {
    url_ = gateway.ready_text;
    std::ofstream(folder_.gateway_address()) << url_ << "\n";
    if (values_.integer("port") != 0) return;
    const std::string port = url_.substr(url_.rfind(':') + 1);
    std::erase_if(gateway.spec.arguments, [](const std::string& text) { return text.starts_with("--port="); });
    gateway.spec.arguments.push_back("--port=" + port);
  }

  const OptionValues& values_;
  const std::string& model_;
  const StateFolder& folder_;
  const SystemClock clock_;
  supervisor::UnixProcesses processes_;
  supervisor::Supervisor supervisor_;
  ClusterScreen screen_;
  std::string url_;
  bool is_serving_said_ = false;
};

}  // namespace

Result<int> run_up(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  SignalWatcher signals;
  TRY(locate_model(invocation.positionals[0]));  // asks whether to fetch it, which the children cannot
  TRY_ASSIGN(const StateFolder folder, StateFolder::open(values.text("cluster")));
  TRY_ASSIGN(const transport::OwnedFd lock, lock_cluster(folder, values.text("cluster")));
  TRY(cluster_tls(values));  // what is wrong with these is said once, here
  TRY(open_registry(values, folder));
  std::vector<supervisor::ChildSpec> children = node_specs(invocation.positionals[0], values, folder);
  children.insert(children.begin(), gateway_spec(invocation.positionals[0], values, folder));
  remove_leftovers(folder, children);
  return UpSession(invocation, folder, std::move(children)).run(signals);
}

}  // namespace tandem::apps
