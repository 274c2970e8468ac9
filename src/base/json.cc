#include "base/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/json_locate.h"
#include "base/utf8.h"

namespace tandem {
namespace {

namespace dom = simdjson::dom;

JsonValue converted(const dom::element& from) {
  switch (from.type()) {
    case dom::element_type::NULL_VALUE:
      return JsonValue();
    case dom::element_type::BOOL:
      return JsonValue(bool(from.get_bool().value_unsafe()));
    case dom::element_type::INT64:
      return JsonValue(int64_t{from.get_int64().value_unsafe()});
    case dom::element_type::UINT64:
      return JsonValue(uint64_t{from.get_uint64().value_unsafe()});
    case dom::element_type::DOUBLE:
      return JsonValue(double{from.get_double().value_unsafe()});
    case dom::element_type::STRING:
      return JsonValue(std::string(std::string_view(from.get_string().value_unsafe())));
    case dom::element_type::ARRAY: {
      JsonValue::Array items;
      const dom::array array = from.get_array().value_unsafe();
      items.reserve(array.size());
      for (const dom::element item : array) items.push_back(converted(item));
      return JsonValue(std::move(items));
    }
    case dom::element_type::OBJECT: {
      JsonValue::Object members;
      const dom::object object = from.get_object().value_unsafe();
      members.reserve(object.size());
      for (const dom::key_value_pair member : object) {
        members.emplace_back(std::string(member.key), converted(member.value));
      }
      return JsonValue(std::move(members));
    }
  }
  return JsonValue();
}

std::string place(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("line {}, column {}", line, offset - line_start + 1);
}

Error syntax_error(std::string_view text, std::string_view reason) {
  const size_t bad_utf8 = find_invalid_utf8(text);
  if (bad_utf8 != text.size()) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("not JSON: invalid UTF-8 at {}", place(text, bad_utf8))};
  }
  const size_t fault = locate_json_fault(text);
  if (fault == std::string_view::npos) return Error{ErrorCode::kInvalidArgument, fmt::format("not JSON: {}", reason)};
  const std::string_view what = fault >= text.size() ? "the text ends too early" : "unexpected character";
  return Error{ErrorCode::kInvalidArgument, fmt::format("not JSON: {} at {}", what, place(text, fault))};
}

}  // namespace

Result<JsonValue> JsonValue::parse(std::string_view text, size_t max_depth) {
  if (text.empty()) return Error{ErrorCode::kInvalidArgument, "not JSON: the text is empty"};
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorCode::kInvalidArgument, "not JSON: the text is over 4 GB"};
  }
  dom::parser parser;
  if (parser.allocate(text.size(), max_depth) != simdjson::SUCCESS) {
    return Error{ErrorCode::kExhausted, "no memory to read JSON"};
  }
  dom::element root;
  const simdjson::error_code code = parser.parse(text.data(), text.size()).get(root);
  if (code == simdjson::DEPTH_ERROR) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("not JSON we read: nested deeper than {}", max_depth)};
  }
  if (code == simdjson::NUMBER_ERROR) return syntax_error(text, "a number is out of range");
  if (code != simdjson::SUCCESS) return syntax_error(text, simdjson::error_message(code));
  return converted(root);
}

bool JsonValue::as_int64(int64_t& out) const {
  const int64_t* held = std::get_if<int64_t>(&value_);
  if (held) out = *held;
  return held != nullptr;
}

bool JsonValue::as_uint64(uint64_t& out) const {
  if (const uint64_t* held = std::get_if<uint64_t>(&value_)) {
    out = *held;
    return true;
  }
  const int64_t* held = std::get_if<int64_t>(&value_);
  if (!held || *held < 0) return false;
  out = static_cast<uint64_t>(*held);
  return true;
}

bool JsonValue::as_double(double& out) const {
  if (const double* held = std::get_if<double>(&value_))
    out = *held;
  else if (const int64_t* held_int = std::get_if<int64_t>(&value_))
    out = static_cast<double>(*held_int);
  else if (const uint64_t* held_uint = std::get_if<uint64_t>(&value_))
    out = static_cast<double>(*held_uint);
  else
    return false;
  return true;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  const Object* members = if_object();
  if (!members) return nullptr;
  for (auto member = members->rbegin(); member != members->rend(); ++member) {
    if (member->first == key) return &member->second;
  }
  return nullptr;
}

std::string_view JsonValue::kind_name() const {
  static constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "an integer",
                                                "a number", "a string",  "an array",   "an object"};
  return kNames[value_.index()];
}

JsonWriter& JsonWriter::open(char bracket) {
  before_value();
  text_.push_back(bracket);
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_.push_back(bracket);
  needs_comma_ = true;
  return *this;
}

void JsonWriter::before_value() {
  if (needs_comma_) text_.push_back(',');
  needs_comma_ = true;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  text_.push_back(':');
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  before_value();
  text_.push_back('"');
  size_t plain_from = 0;  // what needs no escape is appended in runs
  const auto flush = [&](size_t to) { append_valid_utf8(text_, text.substr(plain_from, to - plain_from)); };
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    flush(i);
    plain_from = i + 1;
    switch (byte) {
      case '"':
        text_ += "\\\"";
        break;
      case '\\':
        text_ += "\\\\";
        break;
      case '\n':
        text_ += "\\n";
        break;
      case '\r':
        text_ += "\\r";
        break;
      case '\t':
        text_ += "\\t";
        break;
      default:
        fmt::format_to(std::back_inserter(text_), "\\u{:04x}", byte);
    }
  }
  flush(text.size());
  text_.push_back('"');
  return *this;
}

namespace {

template <class T>
void append_number(std::string& out, T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  out.append(buffer, end);
}

}  // namespace

JsonWriter& JsonWriter::integer(int64_t value) {
  before_value();
  append_number(text_, value);
  return *this;
}

JsonWriter& JsonWriter::unsigned_integer(uint64_t value) {
  before_value();
  append_number(text_, value);
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  if (!std::isfinite(value)) return null();
  before_value();
  append_number(text_, value);
  return *this;
}

JsonWriter& JsonWriter::number(float value) {
  if (!std::isfinite(value)) return null();
  before_value();
  append_number(text_, value);
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) { return raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::null() { return raw("null"); }

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  text_.append(json);
  return *this;
}

JsonWriter& JsonWriter::value(const JsonValue& value) {
  int64_t as_int = 0;
  uint64_t as_uint = 0;
  double as_double = 0;
  if (const bool* flag = value.if_bool()) return boolean(*flag);
  if (const std::string* text = value.if_string()) return string(*text);
  if (value.as_int64(as_int)) return integer(as_int);
  if (value.as_uint64(as_uint)) return unsigned_integer(as_uint);
  if (value.as_double(as_double)) return number(as_double);
  if (const JsonValue::Array* items = value.if_array()) {
    begin_array();
    for (const JsonValue& item : *items) this->value(item);
    return end_array();
  }
  if (const JsonValue::Object* members = value.if_object()) {
    begin_object();
    for (const auto& [name, member] : *members) key(name).value(member);
    return end_object();
  }
  return null();
}

}  // namespace tandem
