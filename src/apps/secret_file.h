#pragma once
// Files with keys in them.

#include <string>

#include "base/options.h"
#include "base/result.h"

namespace tandem::apps {

// The option's text; empty without the option. An empty text is refused: from a variable that is not set, it would
// open what it should close.
Result<std::string> path_or_empty(const OptionValues& values, const char* name);

// Says in the log when others than its owner may read the file.
void warn_if_open_to_others(const std::string& path);

}  // namespace tandem::apps
