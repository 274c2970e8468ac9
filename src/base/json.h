#pragma once
// JSON: JsonValue, an owned tree read from untrusted text; JsonWriter, which appends to a string.
//
// The parser is strict (RFC 8259): whole text, valid UTF-8, no lone surrogates, bounded depth. The library behind
// it stays in json.cc. A value owns all it holds; one thread writes, any may read.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tandem {

class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Object = std::vector<std::pair<std::string, JsonValue>>;  // in the order of the text

  static constexpr size_t kMaxDepth = 96;

  // kInvalidArgument, with line and column, when `text` is not one JSON value. Integers outside int64 and uint64 and
  // doubles that overflow are refused too.
  static Result<JsonValue> parse(std::string_view text, size_t max_depth = kMaxDepth);

  JsonValue() = default;  // null
  explicit JsonValue(bool value) : value_(value) {}
  explicit JsonValue(int64_t value) : value_(value) {}
  explicit JsonValue(uint64_t value) : value_(value) {}
  explicit JsonValue(double value) : value_(value) {}
  explicit JsonValue(std::string value) : value_(std::move(value)) {}
  explicit JsonValue(Array value) : value_(std::move(value)) {}
  explicit JsonValue(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* if_bool() const { return std::get_if<bool>(&value_); }
  const std::string* if_string() const { return std::get_if<std::string>(&value_); }
  const Array* if_array() const { return std::get_if<Array>(&value_); }
  const Object* if_object() const { return std::get_if<Object>(&value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  // Written without a fraction or exponent. Above int64: only as_uint64 has it.
  bool is_integer() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
  }
  // False when it is no integer or does not fit.
  bool as_int64(int64_t& out) const;
  bool as_uint64(uint64_t& out) const;
  bool as_double(double& out) const;  // any number; integers beyond 2^53 are rounded

  // The member of that name; null when there is none or this is no object. Of duplicates the last.
  const JsonValue* find(std::string_view key) const;

  // "null", "a boolean", "an integer", "a number", "a string", "an array", "an object": for messages.
  std::string_view kind_name() const;

 private:
  // A uint64_t is kept only above the range of int64_t.
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

// Appends one JSON text. Commas are its business, nesting the caller's. The result is always valid UTF-8: invalid
// bytes become U+FFFD; NaN and infinities become null; doubles come out in the shortest form that reads back equal.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view text);
  JsonWriter& integer(int64_t value);
  JsonWriter& unsigned_integer(uint64_t value);
  JsonWriter& number(double value);
  JsonWriter& number(float value);  // shortest that reads back as this float
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  JsonWriter& value(const JsonValue& value);
  JsonWriter& raw(std::string_view json);  // a complete JSON value, taken as it is

  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void before_value();

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace tandem
