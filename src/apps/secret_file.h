#pragma once
// Files with keys in them.

#include <string>

namespace tandem::apps {

// Says in the log when others than its owner may read the file.
void warn_if_open_to_others(const std::string& path);

}  // namespace tandem::apps
