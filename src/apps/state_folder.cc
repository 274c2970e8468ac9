#include "apps/state_folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "apps/secret_file.h"
#include "base/mapped_file.h"

namespace tandem::apps {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxShortFileBytes = 4096;

Status make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return Error{ErrorCode::kUnavailable, part + ": " + strerror(errno)};
    }
    if (slash == std::string::npos) return Done{};
  }
}

}  // namespace

Status check_name(const std::string& what, const std::string& name) {
  const auto is_taken = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  if (!name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' && name.front() != '-' &&
      std::all_of(name.begin(), name.end(), is_taken)) {
    return Done{};
  }
  return Error{ErrorCode::kInvalidArgument,
               what + " '" + name + "': 1 to 64 letters, digits, '-', '_' and '.', the first a letter or a digit"};
}

Result<StateFolder> StateFolder::open(const std::string& cluster) {
  TRY(check_name("cluster", cluster));
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::string root = state != nullptr && *state == '/' ? state : "";
  if (root.empty() && home != nullptr && *home == '/') root = std::string(home) + "/.local/state";
  if (root.empty()) return Error{ErrorCode::kUnavailable, "neither XDG_STATE_HOME nor HOME names a folder"};
  const std::string path = root + "/tandem/" + cluster;
  TRY(make_folders(path));
  return StateFolder(path);
}

Result<std::string> read_short_file(const std::string& path) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  std::string text(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMaxShortFileBytes + 1));
  constexpr const char* kSpace = " \t\r\n";
  text.erase(text.find_last_not_of(kSpace) + 1);
  text.erase(0, text.find_first_not_of(kSpace));
  if (text.empty() || text.size() > kMaxShortFileBytes) {
    return Error{ErrorCode::kInvalidArgument, path + (text.empty() ? " is empty" : " is longer than 4 KiB")};
  }
  return text;
}

Result<std::string> admin_key(const OptionValues& values) {
  if (!values.has("admin-key-file")) return std::string();
  warn_if_open_to_others(values.text("admin-key-file"));
  return read_short_file(values.text("admin-key-file"));
}

}  // namespace tandem::apps
