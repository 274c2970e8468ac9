#pragma once
// UTF-8 checks for text that others made. Source: RFC 3629; replacement as Unicode 15, 3.9 (maximal subparts).

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem {

// Byte offset of the first byte that is not part of valid UTF-8 (surrogates and overlong forms are not);
// text.size() when all of it is valid.
size_t find_invalid_utf8(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return find_invalid_utf8(text) == text.size(); }

// Appends `bytes`, each maximal invalid part as one U+FFFD.
void append_valid_utf8(std::string& out, std::string_view bytes);

}  // namespace tandem
