#pragma once
// The words of a command line, sorted into options and positionals. CLI11 stays inside flag_parser.cc.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/result.h"

namespace tandem::cli {

struct ParsedFlags {
  std::vector<std::pair<std::string, std::vector<std::string>>> options;  // name to its texts, in declared order
  std::vector<std::string> positionals;
  bool wants_help = false;
};

// Knows names only: values are not checked. An unknown flag is kInvalidArgument that names the nearest known one.
Result<ParsedFlags> parse_flags(const std::vector<OptionSpec>& specs, const std::vector<std::string>& args);

}  // namespace tandem::cli
