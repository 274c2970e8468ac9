#include "base/base64.h"

#include <algorithm>
#include <cstdint>

namespace tandem {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    size_t count = 4;
    if (i + 4 == text.size()) count = text[i + 3] != '=' ? 4 : text[i + 2] != '=' ? 3 : 2;
    uint32_t group = 0;
    for (size_t k = 0; k < count; ++k) {
      const size_t value = kAlphabet.find(text[i + k]);
      if (value == std::string_view::npos) return std::nullopt;
      group |= static_cast<uint32_t>(value) << (18 - 6 * k);
    }
    for (size_t k = 0; k + 1 < count; ++k) bytes += static_cast<char>(group >> (16 - 8 * k) & 255);
  }
  return bytes;
}

}  // namespace tandem
