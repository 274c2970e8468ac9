#pragma once
// A TOML file of options. toml++ stays inside config_file.cc.

#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::cli {

struct ConfigEntry {
  std::string key;                 // with dashes, however it was written
  std::vector<std::string> texts;  // several for an array
  uint32_t line = 0;
};

// The top-level keys. kNotFound when the file is absent; kInvalidArgument, with the line, for a fault of syntax, a
// table, or a value that no option has (a date).
Result<std::vector<ConfigEntry>> read_config_file(const std::string& path);

}  // namespace tandem::cli
