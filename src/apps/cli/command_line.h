#pragma once
// From the words of a command line, the environment and a configuration file to checked values.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"

namespace tandem::cli {

enum class Action : uint8_t {
  kRun,      // command, with its values
  kHelp,     // the command's help, or the overview without a command
  kVersion,
};

struct Invocation {
  Action action = Action::kRun;
  const CommandSpec* command = nullptr;
  OptionValues values{{}};
  std::vector<std::string> positionals;
};

// Null when a variable is not set, as getenv.
using Environment = std::function<const char*(const std::string& name)>;

// `args` without the program's name. An Error is wrong usage; its message is complete.
Result<Invocation> parse_command_line(const std::vector<std::string>& args, const Environment& environment);

}  // namespace tandem::cli
