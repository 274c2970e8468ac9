#include "serve/text/call_object_reader.h"

#include <utility>

#include "base/json.h"

namespace tandem::text {
namespace {

using State = JsonScanner::State;

// The text of a JSON string, quotes included; empty for anything else.
std::string decoded(const std::string& raw) {
  auto value = JsonValue::parse(raw);
  return value && value->if_string() ? *value->if_string() : std::string();
}

}  // namespace

CallObjectReader::Event CallObjectReader::push(char c) {
  const State before = scanner_.state();
  const size_t depth_before = scanner_.depth();
  const JsonScanner::Step step = scanner_.push(c);
  if (step == JsonScanner::Step::kBad) return Event::kBad;
  const bool had_started = has_started_;
  bool is_argument = false;
  if (is_in_key_) {
    key_.push_back(c);
    if (scanner_.state() == State::kColon) {
      is_in_key_ = false;
      key_ = decoded(key_);
    }
  } else if (depth_before == 1 && c == '"' && (before == State::kFirstKey || before == State::kKey)) {
    is_in_key_ = true;
    key_ = "\"";
  } else if (!is_in_value_ && depth_before == 1 && before == State::kValue && !is_json_space(c)) {
    if (!begin_value(c)) return Event::kBad;
  }
  if (is_in_value_) {
    const bool is_after_scalar = depth_before == 1 && before == State::kScalar && scanner_.state() != State::kScalar;
    is_argument = is_streaming_;
    if (!is_streaming_ && !is_after_scalar) value_.push_back(c);
    const bool is_last = scanner_.depth() == 1 && scanner_.state() == State::kAfterValue;
    if ((is_last || is_after_scalar) && !end_value()) return Event::kBad;
  }
  if (step == JsonScanner::Step::kDone) return Event::kDone;
  if (is_argument) return had_started ? Event::kArgument : Event::kStart;
  return has_started_ ? Event::kInside : Event::kHeld;
}

bool CallObjectReader::begin_value(char c) {
  is_in_value_ = true;
  value_.clear();
  const bool is_arguments = (key_ == "arguments" || key_ == "parameters") && !has_arguments_;
  if (!is_arguments) return true;
  if (c != '{') return false;
  has_arguments_ = true;
  is_streaming_ = has_name();
  has_started_ = is_streaming_;
  return true;
}

bool CallObjectReader::end_value() {
  is_in_value_ = false;
  if (std::exchange(is_streaming_, false)) return true;
  if (key_ == "name" && !has_name()) {
    name_ = decoded(value_);
    return has_name();
  }
  if (has_arguments_ && arguments_.empty() && (key_ == "arguments" || key_ == "parameters")) arguments_ = value_;
  return true;
}

}  // namespace tandem::text
