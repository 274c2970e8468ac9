#pragma once
// Names of split GGUF files: PREFIX-00002-of-00003.gguf.

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::model {

struct SplitName {
  std::string prefix;  // with the directory
  uint32_t number;     // from 1
  uint32_t count;
};

// Nothing when `path` is not named like a shard.
std::optional<SplitName> parse_split_name(const std::string& path);

std::string split_path(const SplitName& name, uint32_t number);

}  // namespace tandem::model
