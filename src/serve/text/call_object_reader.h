#pragma once
// CallObjectReader: {"name": .., "arguments": {..}} byte by byte, members in any order, "parameters" meaning the same.
// As soon as the name is known the bytes of the arguments can go on to the client. One thread.

#include <string>

#include "serve/text/json_scanner.h"

namespace tandem::text {

class CallObjectReader {
 public:
  enum class Event : uint8_t {
    kHeld,      // nothing to tell yet
    kStart,     // name() is known, and this byte is the first of the arguments
    kArgument,  // this byte is one of the arguments
    kInside,    // a byte of the object after the start, but of no argument
    kDone,      // its last byte. Without a start before: ask has_name(), has_arguments() and arguments()
    kBad,       // this byte can not be. After the start: is_in_arguments() says where
  };

  // The first byte is the opening {.
  Event push(char c);

  bool has_started() const { return has_started_; }
  bool has_name() const { return !name_.empty(); }
  const std::string& name() const { return name_; }
  bool has_arguments() const { return has_arguments_; }
  const std::string& arguments() const { return arguments_; }  // that came before the name
  bool is_in_arguments() const { return is_streaming_; }

 private:
  bool begin_value(char c);
  bool end_value();

  JsonScanner scanner_;
  std::string key_;
  std::string value_;  // the raw text of the member that is being read
  std::string name_;
  std::string arguments_;
  bool is_in_key_ = false;
  bool is_in_value_ = false;
  bool is_streaming_ = false;
  bool has_started_ = false;
  bool has_arguments_ = false;
};

}  // namespace tandem::text
