#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace tandem {
namespace {

struct Sequence {
  size_t size = 1;  // bytes of the character, or of the invalid part
  bool is_valid = false;
};

// The character, or the maximal invalid part, that starts at `at`.
Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {1, true};
  size_t size = 0;
  uint8_t low = 0x80, high = 0xBF;  // allowed second byte
  if (lead >= 0xC2 && lead <= 0xDF)
    size = 2;
  else if (lead >= 0xE0 && lead <= 0xEF)
    size = 3;
  else if (lead >= 0xF0 && lead <= 0xF4)
    size = 4;
  else
    return {1, false};
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < size; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {size, true};
}

// Length of the run of ASCII from `at`.
size_t skip_ascii(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) break;
    at += 8;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t at = skip_ascii(text, 0);
  while (at < text.size()) {
    const Sequence next = sequence_at(text, at);
    if (!next.is_valid) return at;
    at = skip_ascii(text, at + next.size);
  }
  return text.size();
}

void append_valid_utf8(std::string& out, std::string_view bytes) {
  while (true) {
    const size_t bad = find_invalid_utf8(bytes);
    out.append(bytes.substr(0, bad));
    if (bad == bytes.size()) return;
    out.append("\xEF\xBF\xBD");
    bytes.remove_prefix(bad + sequence_at(bytes, bad).size);
  }
}

}  // namespace tandem
