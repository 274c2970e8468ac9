#pragma once
// Where a text stops being JSON: for error messages only, so it may be slow.

#include <cstddef>
#include <string_view>

namespace tandem {

// Offset of the first byte that cannot continue a JSON text; text.size() when it ends too early; npos when the
// text is one valid value as far as this check goes (it does not look at UTF-8 or at number ranges).
size_t locate_json_fault(std::string_view text);

}  // namespace tandem
