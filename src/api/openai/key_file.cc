#include "api/openai/key_file.h"

#include <algorithm>
#include <charconv>

namespace tandem::openai {
namespace {

constexpr size_t kMinKeyBytes = 8, kMaxKeyBytes = 512, kMaxNameBytes = 64;
constexpr double kMinWeight = 0.01, kMaxWeight = 1000;

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(kSpace);
    if (begin == std::string_view::npos || line[begin] == '#') return words;
    const size_t end = std::min(line.find_first_of(kSpace, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

bool is_name(std::string_view text) {
  const auto is_taken = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return text.size() <= kMaxNameBytes && std::all_of(text.begin(), text.end(), is_taken);
}

bool is_key(std::string_view text) {
  return text.size() >= kMinKeyBytes && text.size() <= kMaxKeyBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

Status read_setting(std::string_view word, ApiKey& key) {
  constexpr std::string_view kWeight = "weight=", kMost = "max-concurrent=";
  const auto wrong = [](std::string message) { return Error{ErrorCode::kInvalidArgument, std::move(message)}; };
  if (word.starts_with(kWeight)) {
    const bool is_good =
        read_number(word.substr(kWeight.size()), key.weight) && key.weight >= kMinWeight && key.weight <= kMaxWeight;
    if (!is_good) return wrong("weight is a number from 0.01 to 1000");
    return Done{};
  }
  if (word.starts_with(kMost)) {
    if (!read_number(word.substr(kMost.size()), key.max_concurrent)) {
      return wrong("max-concurrent is a whole number; 0: no limit");
    }
    return Done{};
  }
  return wrong("after name and key only weight=NUMBER and max-concurrent=NUMBER may stand");
}

Result<ApiKey> key_of(const std::vector<std::string_view>& words) {
  const auto wrong = [](const char* message) { return Error{ErrorCode::kInvalidArgument, message}; };
  if (words.size() < 2) return wrong("a line is NAME KEY [weight=NUMBER] [max-concurrent=NUMBER]");
  if (!is_name(words[0])) return wrong("a name is at most 64 letters, digits, '-', '_' and '.'");
  if (!is_key(words[1])) return wrong("a key has 8 to 512 printable characters");
  ApiKey key;
  key.name = words[0];
  key.key = words[1];
  for (size_t i = 2; i < words.size(); ++i) TRY(read_setting(words[i], key));
  return key;
}

}  // namespace

Result<std::vector<ApiKey>> parse_key_file(std::string_view text) {
  std::vector<ApiKey> keys;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    const std::string line = "line " + std::to_string(number);
    auto key = key_of(words);
    if (!key) return std::move(key).error().during(line);
    for (const ApiKey& known : keys) {
      if (known.name != key->name && known.key != key->key) continue;
      const std::string what = known.name == key->name ? "the name " + known.name : "the key of " + known.name;
      return Error{ErrorCode::kInvalidArgument, line + ": " + what + " is there already"};
    }
    keys.push_back(std::move(key).value());
  }
  if (keys.empty()) return Error{ErrorCode::kInvalidArgument, "no key is in it"};
  return keys;
}

}  // namespace tandem::openai
