#pragma once
// CommandSpec: what one subcommand takes and how it is explained. commands() is the only declaration of the command
// line, of the configuration file's keys and of docs/configuration.md.

#include <string_view>
#include <vector>

#include "base/options.h"

namespace tandem::cli {

struct OptionGroup {
  std::string_view title;
  std::vector<OptionSpec> options;
};

struct Positional {
  std::string_view name;  // "MODEL"
  std::string_view help;
  bool is_required = true;
};

struct Example {
  std::string_view command;
  std::string_view what;
};

struct CommandSpec {
  std::string_view name;     // "serve", "bench engine"
  std::string_view summary;  // one line, for the overview
  std::string_view details = {};  // further paragraphs, each one line of text
  std::vector<Positional> positionals = {};
  std::vector<Example> examples = {};
  std::vector<OptionGroup> groups = {};

  std::vector<OptionSpec> all_options() const;
};

// In the order of the overview. Built once; lives as long as the program.
const std::vector<CommandSpec>& commands();

// Null when there is none of that name.
const CommandSpec* find_command(std::string_view name);

}  // namespace tandem::cli
