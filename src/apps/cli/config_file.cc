#include "apps/cli/config_file.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "base/mapped_file.h"

namespace tandem::cli {
namespace {

// The value as a user would write it after a flag; false when no option has such a value.
bool append_text(const toml::node& node, std::vector<std::string>& texts) {
  if (const auto* text = node.as_string()) texts.push_back(text->get());
  else if (const auto* integer = node.as_integer()) texts.push_back(fmt::format("{}", integer->get()));
  else if (const auto* number = node.as_floating_point()) texts.push_back(fmt::format("{}", number->get()));
  else if (const auto* boolean = node.as_boolean()) texts.push_back(boolean->get() ? "true" : "false");
  else return false;
  return true;
}

}  // namespace

Result<std::vector<ConfigEntry>> read_config_file(const std::string& path) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  std::vector<ConfigEntry> entries;
  try {
    const toml::table table = toml::parse(text, path);
    for (const auto& [key, node] : table) {
      ConfigEntry entry{std::string(key.str()), {}, static_cast<uint32_t>(key.source().begin.line)};
      std::replace(entry.key.begin(), entry.key.end(), '_', '-');
      bool is_good = true;
      if (const auto* array = node.as_array()) {
        for (const toml::node& element : *array) is_good = is_good && append_text(element, entry.texts);
      } else {
        is_good = append_text(node, entry.texts);
      }
      if (!is_good) {
        return Error{ErrorCode::kInvalidArgument,
                     fmt::format("{} line {}: {}: give a text, number, boolean or array of these", path, entry.line,
                                 std::string_view(key.str()))};
      }
      entries.push_back(std::move(entry));
    }
  } catch (const toml::parse_error& fault) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} line {}: {}", path, fault.source().begin.line, fault.description())};
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return entries;
}

}  // namespace tandem::cli
