#pragma once
// JsonScanner: one JSON object or array, byte by byte: says at each byte whether the value goes on, is complete, or can
// not become JSON any more. Keeps no text. One thread.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

class JsonScanner {
 public:
  enum class Step : uint8_t { kMore, kDone, kBad };
  enum class State : uint8_t {
    kValue,      // a value has to come
    kFirstItem,  // a value or ]
    kFirstKey,   // a key or }
    kKey,        // a key
    kColon,
    kAfterValue,  // a comma or the closing bracket
    kString,
    kEscape,   // after a backslash
    kUnicode,  // in the digits of \uXXXX
    kScalar,   // in a number, true, false or null
    kDone,
    kBad,
  };

  static constexpr size_t kMaxDepth = 96;  // as JsonValue reads

  // The first byte has to be { or [. After kDone or kBad it stays so.
  Step push(char c);

  State state() const { return state_; }
  size_t depth() const { return open_.size(); }  // open brackets
  bool is_in_string() const {
    return state_ == State::kString || state_ == State::kEscape || state_ == State::kUnicode;
  }

 private:
  State next(char c);
  State begin_value(char c);
  State open(char bracket, State inside);
  State close(char bracket);
  State after_value(char c);
  State in_string(char c);

  State state_ = State::kValue;
  std::string open_;     // the open brackets, outermost first
  std::string scalar_;   // so far
  bool is_key_ = false;  // the string is a key
  int num_digits_ = 0;   // of \uXXXX
};

bool is_json_space(char c);

// JSON text with each number that JsonValue refuses for its size replaced by the nearest double: models and their
// clients may write any. What is wrong otherwise stays as it is.
std::string with_readable_numbers(std::string_view json);

}  // namespace tandem::text
