#include "api/openai/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::openai {
namespace {

// What a message may repeat of a value: never a text, which may be part of a prompt.
std::string shown(const JsonValue& value) {
  if (value.is_number() || value.if_bool()) return JsonWriter().value(value).take();
  return std::string(value.kind_name());
}

// 16.0 is an integer too: some clients know no other numbers.
bool as_whole(const JsonValue& value, int64_t& out) {
  if (value.as_int64(out)) return true;
  constexpr double kLargest = 9007199254740992.0;  // 2^53: above it a double is no longer one integer
  double number = 0;
  if (value.is_integer() || !value.as_double(number)) return false;
  if (!(std::fabs(number) <= kLargest) || number != std::floor(number)) return false;
  out = static_cast<int64_t>(number);
  return true;
}

}  // namespace

const JsonValue* FieldReader::get(std::string_view name) const {
  if (error_) return nullptr;
  asked_.emplace_back(name);
  const JsonValue* value = object_.find(name);
  return value && !value->is_null() ? value : nullptr;
}

std::vector<std::string_view> FieldReader::unread() const {
  std::vector<std::string_view> names;
  const JsonValue::Object* members = object_.if_object();
  if (!members) return names;
  for (const auto& [name, value] : *members) {
    if (std::find(asked_.begin(), asked_.end(), name) == asked_.end()) names.push_back(name);
  }
  return names;
}

void FieldReader::fail(std::string_view name, std::string message) {
  if (!error_) error_ = invalid_request(path_ + std::string(name), fmt::format("{}{}: {}", path_, name, message));
}

void FieldReader::fail_kind(std::string_view name, std::string_view expected, const JsonValue& got) {
  fail(name, fmt::format("expected {}, got {}", expected, shown(got)));
}

std::optional<bool> FieldReader::optional_flag(std::string_view name) {
  const JsonValue* value = get(name);
  if (!value) return std::nullopt;
  const bool* flag = value->if_bool();
  if (!flag) {
    fail_kind(name, "a boolean", *value);
    return std::nullopt;
  }
  return *flag;
}

bool FieldReader::flag(std::string_view name, bool otherwise) { return optional_flag(name).value_or(otherwise); }

float FieldReader::number(std::string_view name, float otherwise, Range range) {
  const JsonValue* value = get(name);
  if (!value) return otherwise;
  double number = 0;
  const bool is_inside = value->as_double(number) && number <= range.high &&
                         (range.excludes_low ? number > range.low : number >= range.low);
  if (is_inside) return static_cast<float>(number);
  const std::string_view low = range.excludes_low ? "above" : "from";
  fail_kind(name, fmt::format("a number {} {} to {}", low, range.low, range.high), *value);
  return otherwise;
}

int64_t FieldReader::integer(std::string_view name, int64_t otherwise, int64_t low, int64_t high) {
  const JsonValue* value = get(name);
  if (!value) return otherwise;
  int64_t number = 0;
  if (as_whole(*value, number) && number >= low && number <= high) return number;
  if (high == INT64_MAX)
    fail_kind(name, fmt::format("an integer not below {}", low), *value);
  else
    fail_kind(name, fmt::format("an integer from {} to {}", low, high), *value);
  return otherwise;
}

std::optional<uint64_t> FieldReader::optional_unsigned(std::string_view name, uint64_t low) {
  const JsonValue* value = get(name);
  if (!value) return std::nullopt;
  uint64_t number = 0;
  int64_t whole = 0;
  bool is_good = value->as_uint64(number);
  if (!is_good && as_whole(*value, whole) && whole >= 0) {
    number = static_cast<uint64_t>(whole);
    is_good = true;
  }
  if (is_good && number >= low) return number;
  fail_kind(name, fmt::format("an integer not below {}", low), *value);
  return std::nullopt;
}

std::string FieldReader::text(std::string_view name) {
  const JsonValue* value = get(name);
  if (!value) return {};
  if (const std::string* text = value->if_string()) return *text;
  fail_kind(name, "a string", *value);
  return {};
}

std::vector<std::string> FieldReader::texts(std::string_view name, size_t max_count) {
  std::vector<std::string> out;
  const JsonValue* value = get(name);
  if (!value) return out;
  if (const std::string* text = value->if_string()) return {*text};
  const JsonValue::Array* list = value->if_array();
  if (!list)
    fail_kind(name, "a string or a list of strings", *value);
  else if (list->size() > max_count)
    fail(name, fmt::format("{} entries, at most {} are allowed", list->size(), max_count));
  if (has_failed()) return out;
  for (const JsonValue& item : *list) {
    if (const std::string* text = item.if_string())
      out.push_back(*text);
    else
      fail_kind(name, "a list of strings", item);
  }
  return out;
}

std::vector<TokenId> FieldReader::token_ids(std::string_view name, size_t max_count, uint32_t vocab_size) {
  const JsonValue* value = get(name);
  if (!value) return {};
  const JsonValue::Array* list = value->if_array();
  if (!list)
    fail_kind(name, "a list of token ids", *value);
  else if (list->size() > max_count)
    fail(name, fmt::format("{} entries, at most {} are allowed", list->size(), max_count));
  if (has_failed()) return {};
  return read_token_ids(*this, name, *list, vocab_size);
}

std::vector<TokenId> read_token_ids(FieldReader& reader, std::string_view name, const JsonValue::Array& list,
                                    uint32_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const JsonValue& item : list) {
    int64_t id = 0;
    if (!item.as_int64(id) || id < 0 || id >= vocab_size) {
      reader.fail_kind(name, fmt::format("token ids from 0 to {}", vocab_size - 1), item);
      return {};
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

}  // namespace tandem::openai
