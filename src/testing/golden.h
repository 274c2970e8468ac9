#pragma once
// Golden files: what a test produced, kept as text in tests/golden and compared byte for byte. UPDATE_GOLDEN=1 rewrites
// them; the difference is for review.

#include <string>
#include <string_view>

namespace tandem::testing {

// Empty when `text` is what the file `path` holds, or has just been written there; else what to say about it: the first
// line that differs, both ways.
std::string golden_difference(const std::string& path, std::string_view text);

}  // namespace tandem::testing
