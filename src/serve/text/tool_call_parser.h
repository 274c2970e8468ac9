#pragma once
// ToolCallParser: finds tool calls in a model's text while it comes, and says what is content, where a call begins, and
// what its arguments are. What it says joined does not depend on how the text is cut into pieces.
//
// A call begins once its head is right: the markers, the name, the first byte of its arguments. What looks like a call
// but gets no right head is content, without a byte lost. What goes wrong later stays in the arguments, for the client
// has seen their beginning. Space around calls is dropped. One choice, one thread at a time.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/text/call_object_reader.h"
#include "serve/text/json_scanner.h"
#include "serve/text/tool_call.h"

namespace tandem::text {

class ToolCallParser {
 public:
  explicit ToolCallParser(std::shared_ptr<const ToolCallRules> rules);

  // Appends to `out` what is certain now, in whole UTF-8 characters. is_marker: the text is that of one of the rules'
  // markers, and came as its token.
  void push(std::string_view text, bool is_marker, std::vector<AnswerPiece>& out);
  // At the end: what was held back. A call that the end cuts off keeps what came of it.
  void finish(std::vector<AnswerPiece>& out);

  size_t num_calls() const { return num_shown_calls_; }
  // Of a call that has been shown the arguments are not complete. Ask before finish().
  bool is_inside_call() const;

 private:
  enum class State : uint8_t {
    kContent,
    kAfterOpen,  // after the opening marker
    kListItem,   // an object has to come
    kObject,     // in {"name":..}
    kAfterItem,  // a comma, ] or ; may come
    kName,       // Mistral's NAME, up to [ARGS] or {
    kNameTag,    // in [ARGS] or [CALL_ID]
    kCallId,
    kArgumentsStart,  // { has to come
    kArguments,
    kBroken,   // in arguments that are no JSON any more, up to a marker
    kXmlOpen,  // in <function=
    kXmlName,
    kXmlBody,  // <parameter= or </function> has to come
    kXmlKey,
    kXmlValue,
  };
  struct Marker {
    std::string text;
    bool is_token = false;
    bool is_open = false;
  };
  // Bytes, and of each whether it came as a marker's token.
  struct Bytes {
    std::string text;
    std::string marks;
    void push(char c, bool is_marker);
    void append(const Bytes& other);
    void clear();
  };

  void feed(char c, bool is_marker);
  void content_byte(char c, bool is_marker);
  void scan(char c, bool is_marker);
  bool begins_bare(char c) const;
  void begin_bare(char c, bool is_marker);
  void on_marker(const Marker& marker);
  const Marker* find_marker(bool& is_begun) const;
  void after_open_byte(char c, bool is_marker);
  void list_item_byte(char c, bool is_marker);
  void object_byte(char c, bool is_marker);
  void after_item_byte(char c, bool is_marker);
  void name_byte(char c, bool is_marker);
  void name_tag_byte(char c, bool is_marker);
  void arguments_byte(char c, bool is_marker);
  void xml_open_byte(char c, bool is_marker);
  void xml_name_byte(char c, bool is_marker);
  void xml_body_byte(char c, bool is_marker);
  void xml_key_byte(char c, bool is_marker);
  void xml_value_byte(char c);
  void xml_parameter(bool is_whole);
  void xml_broken(const Bytes& rest);

  void finish_object();
  void end_call();
  void end_item();
  // No call: what is held is content, and from `refeed` on it is looked at once more.
  void fail(size_t refeed);
  void fail_at_last() { fail(held_.text.size() - 1); }
  void start_call(const std::string& name);
  void show_content(std::string_view text);
  void show_arguments(std::string_view text);
  void show(AnswerPiece::Kind kind, size_t call, std::string_view text);
  bool is_known(const std::string& name) const;
  bool is_list() const;

  std::shared_ptr<const ToolCallRules> rules_;
  std::vector<Marker> markers_;
  State state_ = State::kContent;
  bool is_at_start_ = true;     // no content and no call yet
  bool holds_space_ = true;     // space that comes now may turn out to stand around a call
  bool expects_close_ = false;  // the closing marker of the last call
  bool is_bare_ = false;        // no marker stands before the object, so that its name has to be a known tool's
  std::string space_;
  Bytes partial_;  // the beginning of a marker, perhaps
  Bytes held_;     // of a call whose head is not complete
  Bytes tag_;      // [ARGS], <parameter=
  std::string name_;
  std::string key_;    // of a parameter
  std::string value_;  // of a parameter
  size_t num_parameters_ = 0;
  bool has_started_ = false;  // the call in XML
  CallObjectReader object_;
  JsonScanner arguments_;
  size_t num_calls_ = 0;
  size_t num_shown_calls_ = 0;
  std::vector<AnswerPiece>* out_ = nullptr;  // during a call
  AnswerPiece tail_;                         // an unfinished character
};

}  // namespace tandem::text
