#pragma once
// Base64 (RFC 4648, section 4): the standard alphabet, padded.

#include <optional>
#include <string>
#include <string_view>

namespace tandem {

std::string to_base64(std::string_view bytes);
// Strict: a length that is no multiple of four, a foreign letter, or padding elsewhere than at the end gives nothing.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace tandem
