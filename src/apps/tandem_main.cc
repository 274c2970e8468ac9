// The one program: parses, finds the subcommand, runs it, and turns what comes back into an exit status.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "apps/cli/help_text.h"
#include "apps/subcommands.h"
#include "apps/version.h"
#include "apps/wiring.h"
#include "base/log.h"

namespace tandem::apps {
namespace {

struct Subcommand {
  std::string_view name;
  Result<int> (*run)(const cli::Invocation& invocation);
};

constexpr Subcommand kSubcommands[] = {
    {"run", run_answer},
    {"serve", run_serve},
    {"up", run_up},
    {"node", run_node},
    {"gateway", run_gateway},
    {"status", run_status},
    {"drain", run_drain},
    {"role", run_role},
    {"pull", run_pull},
    {"list", run_list},
    {"inspect model", run_inspect_model},
    {"inspect graph", run_inspect_graph},
    {"inspect kv", run_inspect_kv},
    {"bench engine", run_bench_engine},
    {"bench limits", run_bench_limits},
    {"bench transport", run_bench_transport},
    {"options", run_options},
};

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void set_log_from(const cli::CommandSpec& command, const OptionValues& values) {
  // What a server logs as it starts has no place in a conversation or a table; asked for, it comes.
  const bool is_server = command.name == "serve" || command.name == "node" || command.name == "gateway";
  const bool is_quiet = !is_server && values.source("log-level") == OptionSource::kDefault;
  const std::string level = is_quiet ? "warning" : values.text("log-level");
  const LogLevel lowest = level == "debug"     ? LogLevel::kDebug
                          : level == "warning" ? LogLevel::kWarning
                          : level == "error"   ? LogLevel::kError
                                               : LogLevel::kInfo;
  set_log(lowest, values.text("log-format") == "json" ? LogFormat::kJson : LogFormat::kText);
}

int run(const std::vector<std::string>& args) {
  auto invocation = cli::parse_command_line(args, [](const std::string& name) { return std::getenv(name.c_str()); });
  if (!invocation) {
    std::fprintf(stderr, "tandem: %s\n", invocation.error().message.c_str());
    return kExitUsage;
  }
  if (invocation->action == cli::Action::kVersion) {
    print(version_text());
    return kExitDone;
  }
  if (invocation->action == cli::Action::kHelp) {
    print(invocation->command == nullptr ? cli::overview_text() : cli::help_text(*invocation->command));
    return kExitDone;
  }
  if (const Status status = check_options(invocation->values); !status) {
    std::fprintf(stderr, "tandem: %s\n", status.error().message.c_str());
    return kExitUsage;
  }
  set_log_from(*invocation->command, invocation->values);
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name != invocation->command->name) continue;
    auto status = subcommand.run(*invocation);
    if (status) return *status;
    std::fprintf(stderr, "tandem: %s\n", status.error().message.c_str());
    return kExitFailed;
  }
  std::fprintf(stderr, "tandem: %s is declared but not there\n", std::string(invocation->command->name).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace tandem::apps

int main(int argc, char** argv) {
  try {
    return tandem::apps::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& fault) {  // out of memory, most likely
    std::fprintf(stderr, "tandem: %s\n", fault.what());
    return tandem::apps::kExitFailed;
  }
}
