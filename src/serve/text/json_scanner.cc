#include "serve/text/json_scanner.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>

#include "base/json.h"

namespace tandem::text {
namespace {

constexpr size_t kMaxScalarBytes = 4096;  // of a number; JSON has no limit

// Takes digits off the beginning; false where there are none.
bool skip_digits(std::string_view& text) {
  const size_t num = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(num);
  return num > 0;
}

// By the grammar of RFC 8259 alone, however large the number.
bool is_scalar(std::string_view text) {
  if (text == "true" || text == "false" || text == "null") return true;
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.starts_with('0'))
    text.remove_prefix(1);
  else if (!skip_digits(text))
    return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!skip_digits(text)) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (!skip_digits(text)) return false;
  }
  return text.empty();
}

// A number by its grammar.
std::string readable(const std::string& scalar) {
  if (JsonValue::parse(scalar)) return scalar;
  constexpr double kLargest = std::numeric_limits<double>::max();
  std::string out = JsonWriter().number(std::clamp(std::strtod(scalar.c_str(), nullptr), -kLargest, kLargest)).take();
  if (out.find_first_of(".e") == std::string::npos) out += ".0";  // as an integer it would be refused again
  return out;
}

bool is_scalar_byte(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.'; }

}  // namespace

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string with_readable_numbers(std::string_view json) {
  JsonScanner scanner;
  std::string out, scalar;
  for (const char c : json) {
    scanner.push(c);
    if (scanner.state() == JsonScanner::State::kScalar) {
      scalar.push_back(c);
      continue;
    }
    if (!scalar.empty()) out += scanner.state() == JsonScanner::State::kBad ? scalar : readable(scalar);
    scalar.clear();
    out.push_back(c);
  }
  return out + scalar;
}

JsonScanner::Step JsonScanner::push(char c) {
  if (state_ != State::kDone && state_ != State::kBad) state_ = next(c);
  if (state_ == State::kBad) return Step::kBad;
  return state_ == State::kDone ? Step::kDone : Step::kMore;
}

JsonScanner::State JsonScanner::next(char c) {
  switch (state_) {
    case State::kString:
    case State::kEscape:
    case State::kUnicode:
      return in_string(c);
    case State::kScalar:
      if (is_scalar_byte(c)) {
        scalar_.push_back(c);
        return scalar_.size() <= kMaxScalarBytes ? State::kScalar : State::kBad;
      }
      if (!is_scalar(scalar_)) return State::kBad;
      return is_json_space(c) ? State::kAfterValue : after_value(c);
    default:
      break;
  }
  if (is_json_space(c) && !open_.empty()) return state_;
  switch (state_) {
    case State::kFirstItem:
      return c == ']' ? close(c) : begin_value(c);
    case State::kValue:
      return begin_value(c);
    case State::kFirstKey:
    case State::kKey:
      if (c == '}' && state_ == State::kFirstKey) return close(c);
      is_key_ = true;
      return c == '"' ? State::kString : State::kBad;
    case State::kColon:
      return c == ':' ? State::kValue : State::kBad;
    case State::kAfterValue:
      return after_value(c);
    default:
      return State::kBad;
  }
}

JsonScanner::State JsonScanner::begin_value(char c) {
  if (c == '{') return open(c, State::kFirstKey);
  if (c == '[') return open(c, State::kFirstItem);
  if (open_.empty()) return State::kBad;
  if (c == '"') {
    is_key_ = false;
    return State::kString;
  }
  scalar_.assign(1, c);
  return is_scalar_byte(c) ? State::kScalar : State::kBad;
}

JsonScanner::State JsonScanner::open(char bracket, State inside) {
  if (open_.size() == kMaxDepth) return State::kBad;
  open_.push_back(bracket);
  return inside;
}

JsonScanner::State JsonScanner::close(char bracket) {
  if (open_.empty() || open_.back() != (bracket == '}' ? '{' : '[')) return State::kBad;
  open_.pop_back();
  return open_.empty() ? State::kDone : State::kAfterValue;
}

JsonScanner::State JsonScanner::after_value(char c) {
  if (c == '}' || c == ']') return close(c);
  if (c != ',') return State::kBad;
  return open_.back() == '{' ? State::kKey : State::kValue;
}

JsonScanner::State JsonScanner::in_string(char c) {
  if (state_ == State::kUnicode) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return State::kBad;
    return ++num_digits_ == 4 ? State::kString : State::kUnicode;
  }
  if (state_ == State::kEscape) {
    num_digits_ = 0;
    if (c == 'u') return State::kUnicode;
    return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos ? State::kString : State::kBad;
  }
  if (c == '\\') return State::kEscape;
  if (static_cast<unsigned char>(c) < 0x20) return State::kBad;
  if (c != '"') return State::kString;
  return is_key_ ? State::kColon : State::kAfterValue;
}

}  // namespace tandem::text
