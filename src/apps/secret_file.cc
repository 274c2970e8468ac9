#include "apps/secret_file.h"

#include <sys/stat.h>

#include "base/log.h"

namespace tandem::apps {

Result<std::string> path_or_empty(const OptionValues& values, const char* name) {
  if (!values.has(name)) return std::string();
  if (values.text(name).empty()) {
    return Error{ErrorCode::kInvalidArgument, "--" + std::string(name) + " is empty, where a file has to be named"};
  }
  return values.text(name);
}

void warn_if_open_to_others(const std::string& path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0 || (facts.st_mode & (S_IRGRP | S_IROTH)) == 0) return;
  log_warning("apps", "others on this machine can read a file with a key; chmod 600 keeps it from them",
              {{"file", path}});
}

}  // namespace tandem::apps
