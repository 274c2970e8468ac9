#include "compute/model/split_name.h"

#include <string_view>

namespace tandem::model {
namespace {

constexpr size_t kDigits = 5;
constexpr std::string_view kOf = "-of-";
constexpr std::string_view kExtension = ".gguf";

std::optional<uint32_t> five_digits(std::string_view text) {
  uint32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return value;
}

std::string padded(uint32_t value) {
  const std::string digits = std::to_string(value);
  return std::string(digits.size() < kDigits ? kDigits - digits.size() : 0, '0') + digits;
}

}  // namespace

std::optional<SplitName> parse_split_name(const std::string& path) {
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kExtension.size();
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = std::string_view(path).substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || !tail.ends_with(kExtension)) return std::nullopt;
  const auto number = five_digits(tail.substr(1, kDigits));
  const auto count = five_digits(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return SplitName{path.substr(0, path.size() - kTail), *number, *count};
}

std::string split_path(const SplitName& name, uint32_t number) {
  return name.prefix + "-" + padded(number) + std::string(kOf) + padded(name.count) + std::string(kExtension);
}

}  // namespace tandem::model
