// ToolCallParser's part for calls written as <function=NAME><parameter=KEY>VALUE</parameter></function>.

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json.h"
#include "serve/text/tool_call_parser.h"

namespace tandem::text {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=";
constexpr std::string_view kEndFunction = "</function>", kEndParameter = "</parameter>";

enum class ValueType : uint8_t { kUnknown, kString, kOther };

// Of several types: text where one of them is a string, for all text is one.
ValueType type_in(const JsonValue& schema) {
  std::vector<ValueType> types;
  if (const JsonValue* type = schema.find("type")) {
    if (const std::string* name = type->if_string()) return *name == "string" ? ValueType::kString : ValueType::kOther;
    for (const JsonValue& one : type->if_array() ? *type->if_array() : JsonValue::Array()) {
      if (const std::string* name = one.if_string())
        types.push_back(*name == "string" ? ValueType::kString : ValueType::kOther);
    }
  }
  for (const char* any : {"anyOf", "oneOf"}) {
    const JsonValue* list = schema.find(any);
    if (!list || !list->if_array()) continue;
    for (const JsonValue& one : *list->if_array())
      types.push_back(one.if_object() ? type_in(one) : ValueType::kUnknown);
  }
  if (types.empty()) return ValueType::kUnknown;
  for (const ValueType wanted : {ValueType::kString, ValueType::kUnknown}) {
    if (std::ranges::find(types, wanted) != types.end()) return wanted;
  }
  return ValueType::kOther;
}

// What the tool's schema says of the parameter.
ValueType type_of(const ToolCallRules& rules, const std::string& tool, const std::string& key) {
  for (const ToolSpec& spec : rules.tools) {
    if (spec.name != tool || !spec.parameters) continue;
    const JsonValue* properties = spec.parameters->find("properties");
    const JsonValue* property = properties ? properties->find(key) : nullptr;
    if (property) return type_in(*property);
  }
  return ValueType::kUnknown;
}

// A single JSON value.
bool is_json(std::string_view text) {
  const auto list = JsonValue::parse(with_readable_numbers("[" + std::string(text) + "]"));
  return list && list->if_array() && list->if_array()->size() == 1;
}

// A line break after the opening tag and one before the closing one are no part of the value.
std::string_view trimmed(std::string_view value, bool is_whole) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (is_whole && value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

std::string quoted(std::string_view text) { return JsonWriter().string(text).take(); }

}  // namespace

void ToolCallParser::xml_open_byte(char c, bool is_marker) {
  held_.push(c, is_marker);
  tag_.push(c, is_marker);
  if (tag_.text == kFunction) {
    state_ = State::kXmlName;
    name_.clear();
  } else if (!kFunction.starts_with(tag_.text)) {
    fail(held_.text.size() - tag_.text.size());
  }
}

void ToolCallParser::xml_name_byte(char c, bool is_marker) {
  held_.push(c, is_marker);
  if (c == '>' && !name_.empty()) {
    state_ = State::kXmlBody;
    tag_.clear();
    num_parameters_ = 0;
    has_started_ = false;
    return;
  }
  if (c == '>' || c == '<' || c == '\n' || name_.size() == kMaxNameBytes) return fail_at_last();
  name_.push_back(c);
}

void ToolCallParser::xml_body_byte(char c, bool is_marker) {
  if (!has_started_) held_.push(c, is_marker);
  if (tag_.text.empty() && is_json_space(c)) return;
  tag_.push(c, is_marker);
  const bool is_parameter = tag_.text == kParameter;
  const bool is_end = tag_.text == kEndFunction;
  if (is_parameter || is_end) {
    if (!has_started_) start_call(name_);
    has_started_ = true;
    held_.clear();
    tag_.clear();
    key_.clear();
    state_ = State::kXmlKey;
    if (!is_end) return;
    show_arguments(num_parameters_ == 0 ? "{}" : "}");
    return end_call();
  }
  if (kParameter.starts_with(tag_.text) || kEndFunction.starts_with(tag_.text)) return;
  if (!has_started_) return fail(held_.text.size() - tag_.text.size());
  const Bytes rest = std::exchange(tag_, {});
  xml_broken(rest);
}

// The call ends here, with what came of its arguments; the rest is content.
void ToolCallParser::xml_broken(const Bytes& rest) {
  show_arguments(num_parameters_ == 0 ? "{}" : "}");
  end_call();
  for (size_t i = 0; i < rest.text.size(); ++i) feed(rest.text[i], rest.marks[i] != 0);
}

void ToolCallParser::xml_key_byte(char c, bool is_marker) {
  if (c == '>' && !key_.empty()) {
    state_ = State::kXmlValue;
    value_.clear();
  } else if (c == '>' || c == '<' || c == '\n' || key_.size() == kMaxNameBytes) {
    Bytes rest;
    for (char earlier : std::string(kParameter) + key_) rest.push(earlier, false);
    rest.push(c, is_marker);
    xml_broken(rest);
  } else {
    key_.push_back(c);
  }
}

void ToolCallParser::xml_value_byte(char c) {
  value_.push_back(c);
  if (!std::string_view(value_).ends_with(kEndParameter)) return;
  value_.resize(value_.size() - kEndParameter.size());
  xml_parameter(true);
  state_ = State::kXmlBody;
}

// is_whole: else the text ends inside the value, and so do the arguments.
void ToolCallParser::xml_parameter(bool is_whole) {
  const std::string_view value = trimmed(value_, is_whole);
  std::string json = quoted(value);
  if (!is_whole) json.pop_back();
  const ValueType type = type_of(*rules_, name_, key_);
  // What the schema does not call a string is JSON, where it can be read as such.
  if (type == ValueType::kOther && (!is_whole || is_json(value))) json = value;
  show_arguments((num_parameters_++ == 0 ? "{" : ", ") + quoted(key_) + ": " + json);
}

}  // namespace tandem::text
