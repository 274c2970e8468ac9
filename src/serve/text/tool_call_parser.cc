#include "serve/text/tool_call_parser.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace tandem::text {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr std::string_view kArgs = "[ARGS]", kCallIdTag = "[CALL_ID]";

bool is_name_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-.:/").find(c) != std::string_view::npos;
}

// How many bytes at the end of `text` begin a character that they do not finish.
size_t unfinished_bytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if (byte < 0x80) return 0;
    if (byte < 0xC0) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return n < length ? n : 0;
  }
  return 0;
}

}  // namespace

void ToolCallParser::Bytes::push(char c, bool is_marker) {
  text.push_back(c);
  marks.push_back(is_marker ? 1 : 0);
}

void ToolCallParser::Bytes::append(const Bytes& other) {
  text += other.text;
  marks += other.marks;
}

void ToolCallParser::Bytes::clear() {
  text.clear();
  marks.clear();
}

ToolCallParser::ToolCallParser(std::shared_ptr<const ToolCallRules> rules) : rules_(std::move(rules)) {
  const auto add = [this](std::string text, bool is_open) {
    const bool is_token = std::ranges::any_of(rules_->markers, [&](const ToolMarker& m) { return m.text == text; });
    markers_.push_back({std::move(text), is_token, is_open});
  };
  switch (rules_->format) {
    case ToolCallFormat::kHermes:
      add("<tool_call>", true);
      add("</tool_call>", false);
      break;
    case ToolCallFormat::kLlama3:
      add("<|python_tag|>", true);
      break;
    case ToolCallFormat::kMistral:
      add("[TOOL_CALLS]", true);
      break;
    default:
      break;
  }
}

void ToolCallParser::push(std::string_view text, bool is_marker, std::vector<AnswerPiece>& out) {
  out_ = &out;
  if (!tail_.text.empty()) out.push_back(std::exchange(tail_, {}));
  for (char c : text) feed(c, is_marker);
  // A name comes whole, and its piece begins a call: the rest of one would begin another.
  if (!out.empty() && out.back().kind != AnswerPiece::Kind::kCall) {
    std::string& last = out.back().text;
    if (const size_t num = unfinished_bytes(last); num > 0) {
      tail_ = {out.back().kind, out.back().call, last.substr(last.size() - num)};
      last.resize(last.size() - num);
      if (last.empty()) out.pop_back();
    }
  }
  out_ = nullptr;
}

void ToolCallParser::finish(std::vector<AnswerPiece>& out) {
  out_ = &out;
  if (!tail_.text.empty()) out.push_back(std::exchange(tail_, {}));
  switch (state_) {
    case State::kContent: {
      const bool is_close = expects_close_ && holds_space_ && partial_.text.starts_with("</");
      if (num_calls_ == 0 || (!partial_.text.empty() && !is_close)) show_content(partial_.text);
      break;
    }
    case State::kBroken:
      show_arguments(partial_.text);
      break;
    case State::kXmlValue:
      xml_parameter(false);
      break;
    case State::kAfterItem:
    case State::kArguments:
    case State::kXmlKey:
      break;
    case State::kListItem:  // after a call only the comma is left over
      if (num_calls_ == 0) show_content(held_.text);
      break;
    default:
      show_content(held_.text);
      break;
  }
  held_.clear();
  partial_.clear();
  state_ = State::kContent;
  out_ = nullptr;
}

bool ToolCallParser::is_inside_call() const {
  if (num_calls_ != num_shown_calls_ || num_calls_ == 0) return false;
  switch (state_) {
    case State::kObject:
      return object_.is_in_arguments();
    case State::kXmlBody:
    case State::kXmlKey:
    case State::kXmlValue:
      return has_started_;
    case State::kArguments:
    case State::kBroken:
      return true;
    default:
      return false;
  }
}

void ToolCallParser::feed(char c, bool is_marker) {
  switch (state_) {
    case State::kContent:
      return content_byte(c, is_marker);
    case State::kBroken:
      return scan(c, is_marker);
    case State::kAfterOpen:
      return after_open_byte(c, is_marker);
    case State::kListItem:
      return list_item_byte(c, is_marker);
    case State::kObject:
      return object_byte(c, is_marker);
    case State::kAfterItem:
      return after_item_byte(c, is_marker);
    case State::kName:
    case State::kCallId:
    case State::kArgumentsStart:
      return name_byte(c, is_marker);
    case State::kNameTag:
      return name_tag_byte(c, is_marker);
    case State::kArguments:
      return arguments_byte(c, is_marker);
    case State::kXmlOpen:
      return xml_open_byte(c, is_marker);
    case State::kXmlName:
      return xml_name_byte(c, is_marker);
    case State::kXmlBody:
      return xml_body_byte(c, is_marker);
    case State::kXmlKey:
      return xml_key_byte(c, is_marker);
    case State::kXmlValue:
      return xml_value_byte(c);
  }
}

// --- content and markers ---

void ToolCallParser::content_byte(char c, bool is_marker) {
  if (partial_.text.empty()) {
    if (holds_space_ && is_json_space(c)) {
      space_.push_back(c);
      return;
    }
    if (is_at_start_ && begins_bare(c)) return begin_bare(c, is_marker);
  }
  scan(c, is_marker);
}

bool ToolCallParser::begins_bare(char c) const {
  switch (rules_->format) {
    case ToolCallFormat::kLlama3:
    case ToolCallFormat::kJsonArguments:
      return c == '{';
    case ToolCallFormat::kJsonList:
      return c == '{' || c == '[';
    default:
      return false;
  }
}

void ToolCallParser::begin_bare(char c, bool is_marker) {
  held_.clear();
  for (char space : std::exchange(space_, {})) held_.push(space, false);
  is_bare_ = rules_->format == ToolCallFormat::kLlama3;
  if (rules_->format == ToolCallFormat::kJsonArguments) {
    state_ = State::kArgumentsStart;
    name_ = rules_->only_tool;
    return feed(c, is_marker);
  }
  state_ = State::kListItem;
  if (c == '[')
    held_.push(c, is_marker);
  else
    feed(c, is_marker);
}

// The marker that `partial_` is, or null; is_begun: it is the beginning of one.
const ToolCallParser::Marker* ToolCallParser::find_marker(bool& is_begun) const {
  is_begun = false;
  for (const Marker& marker : markers_) {
    if (!marker.is_open && !expects_close_ && state_ != State::kBroken) continue;
    if (!marker.text.starts_with(partial_.text)) continue;
    if (marker.is_token && partial_.marks.find('\0') != std::string::npos) continue;
    if (marker.text.size() == partial_.text.size()) return &marker;
    is_begun = true;
  }
  return nullptr;
}

void ToolCallParser::scan(char c, bool is_marker) {
  partial_.push(c, is_marker);
  while (!partial_.text.empty()) {
    bool is_begun = false;
    if (const Marker* marker = find_marker(is_begun)) return on_marker(*marker);
    if (is_begun) return;
    if (state_ == State::kBroken)
      show_arguments(partial_.text.substr(0, 1));
    else
      show_content(partial_.text.substr(0, 1));
    partial_.text.erase(0, 1);
    partial_.marks.erase(0, 1);
  }
}

void ToolCallParser::on_marker(const Marker& marker) {
  const Bytes found = std::exchange(partial_, {});
  if (state_ == State::kBroken) end_call();
  if (!marker.is_open) {
    expects_close_ = false;
    holds_space_ = true;
    space_.clear();
    return;
  }
  held_.clear();
  for (char space : std::exchange(space_, {})) held_.push(space, false);
  held_.append(found);
  is_bare_ = false;
  state_ = State::kAfterOpen;
}

void ToolCallParser::fail(size_t refeed) {
  const Bytes held = std::exchange(held_, {});
  tag_.clear();
  state_ = State::kContent;
  is_at_start_ = holds_space_ = expects_close_ = false;
  show_content(std::string_view(held.text).substr(0, refeed));
  for (size_t i = refeed; i < held.text.size(); ++i) feed(held.text[i], held.marks[i] != 0);
}

// --- calls in JSON ---

bool ToolCallParser::is_list() const {
  return rules_->format == ToolCallFormat::kMistral || rules_->format == ToolCallFormat::kJsonList;
}

void ToolCallParser::after_open_byte(char c, bool is_marker) {
  held_.push(c, is_marker);
  if (is_json_space(c)) return;
  if (rules_->format == ToolCallFormat::kMistral) {
    if (c == '[') {
      state_ = State::kListItem;
    } else if (is_name_byte(c)) {
      state_ = State::kName;
      name_.assign(1, c);
    } else {
      fail_at_last();
    }
    return;
  }
  if (c == '{') {
    held_.text.pop_back();
    held_.marks.pop_back();
    state_ = State::kListItem;
    return feed(c, is_marker);
  }
  if (c != '<' || rules_->format != ToolCallFormat::kHermes) return fail_at_last();
  state_ = State::kXmlOpen;
  tag_.clear();
  tag_.push(c, is_marker);
}

void ToolCallParser::list_item_byte(char c, bool is_marker) {
  if (c == '{') {
    state_ = State::kObject;
    object_ = {};
    return object_byte(c, is_marker);
  }
  held_.push(c, is_marker);
  if (is_json_space(c)) return;
  if (c != ']' || !is_list() || num_calls_ == 0) return fail_at_last();
  held_.clear();
  end_call();
}

void ToolCallParser::object_byte(char c, bool is_marker) {
  using Event = CallObjectReader::Event;
  const Event event = object_.push(c);
  if (!object_.has_started() || event == Event::kStart) held_.push(c, is_marker);
  switch (event) {
    case Event::kHeld:
    case Event::kInside:
      break;
    case Event::kStart:
      if (is_bare_ && !is_known(object_.name())) return fail_at_last();
      held_.clear();
      start_call(object_.name());
      show_arguments({&c, 1});
      break;
    case Event::kArgument:
      show_arguments({&c, 1});
      break;
    case Event::kDone:
      finish_object();
      break;
    case Event::kBad:
      if (!object_.has_started()) return fail_at_last();
      if (object_.is_in_arguments())
        state_ = State::kBroken;
      else
        end_call();
      feed(c, is_marker);
      break;
  }
}

void ToolCallParser::finish_object() {
  if (!object_.has_started()) {
    const bool is_call = object_.has_name() && (object_.has_arguments() || !is_bare_);
    if (!is_call || (is_bare_ && !is_known(object_.name()))) return fail_at_last();
    held_.clear();
    start_call(object_.name());
    show_arguments(object_.has_arguments() ? std::string_view(object_.arguments()) : "{}");
  }
  end_item();
}

void ToolCallParser::end_item() {
  held_.clear();
  if (rules_->format == ToolCallFormat::kHermes)
    end_call();
  else
    state_ = State::kAfterItem;
}

void ToolCallParser::after_item_byte(char c, bool is_marker) {
  if (is_json_space(c)) return held_.push(c, is_marker);
  if (c == (is_list() ? ',' : ';')) {
    held_.push(c, is_marker);
    state_ = State::kListItem;
    return;
  }
  const Bytes spaces = std::exchange(held_, {});
  end_call();
  if (c == ']' && is_list()) return;
  space_ = spaces.text;
  feed(c, is_marker);
}

void ToolCallParser::end_call() {
  state_ = State::kContent;
  is_at_start_ = false;
  holds_space_ = true;
  space_.clear();
  expects_close_ = rules_->format == ToolCallFormat::kHermes;
}

// --- Mistral's NAME[ARGS]{..} ---

void ToolCallParser::name_byte(char c, bool is_marker) {
  held_.push(c, is_marker);
  if (c == '{' && state_ != State::kCallId) {
    held_.clear();
    start_call(name_);
    state_ = State::kArguments;
    arguments_ = {};
    return arguments_byte(c, is_marker);
  }
  if (c == '[' && state_ != State::kArgumentsStart) {
    state_ = State::kNameTag;
    tag_.clear();
    tag_.push(c, is_marker);
    return;
  }
  if (state_ == State::kArgumentsStart && is_json_space(c)) return;
  const bool is_inside = is_name_byte(c) && held_.text.size() <= 4 * kMaxNameBytes;
  if (!is_inside || state_ == State::kArgumentsStart) return fail_at_last();
  if (state_ == State::kName) name_.push_back(c);
  if (name_.size() > kMaxNameBytes) fail_at_last();
}

void ToolCallParser::name_tag_byte(char c, bool is_marker) {
  held_.push(c, is_marker);
  tag_.push(c, is_marker);
  if (tag_.text == kArgs)
    state_ = State::kArgumentsStart;
  else if (tag_.text == kCallIdTag)
    state_ = State::kCallId;
  else if (!kArgs.starts_with(tag_.text) && !kCallIdTag.starts_with(tag_.text))
    fail(held_.text.size() - tag_.text.size());
}

void ToolCallParser::arguments_byte(char c, bool is_marker) {
  switch (arguments_.push(c)) {
    case JsonScanner::Step::kMore:
      return show_arguments({&c, 1});
    case JsonScanner::Step::kDone:
      show_arguments({&c, 1});
      return end_call();
    case JsonScanner::Step::kBad:
      state_ = State::kBroken;
      return feed(c, is_marker);
  }
}

// --- what goes out ---

bool ToolCallParser::is_known(const std::string& name) const {
  return std::ranges::any_of(rules_->tools, [&](const ToolSpec& tool) { return tool.name == name; });
}

void ToolCallParser::start_call(const std::string& name) {
  is_at_start_ = false;
  ++num_calls_;
  if (!rules_->is_parallel && num_calls_ > 1) return;
  ++num_shown_calls_;
  show(AnswerPiece::Kind::kCall, num_calls_ - 1, name);
}

void ToolCallParser::show_content(std::string_view text) {
  if (text.empty() && space_.empty()) return;
  is_at_start_ = holds_space_ = false;
  show(AnswerPiece::Kind::kContent, 0, std::exchange(space_, {}));
  show(AnswerPiece::Kind::kContent, 0, text);
}

void ToolCallParser::show_arguments(std::string_view text) {
  if (num_calls_ == num_shown_calls_) show(AnswerPiece::Kind::kArguments, num_calls_ - 1, text);
}

void ToolCallParser::show(AnswerPiece::Kind kind, size_t call, std::string_view text) {
  if (text.empty()) return;
  if (kind != AnswerPiece::Kind::kCall && !out_->empty() && out_->back().kind == kind && out_->back().call == call) {
    out_->back().text += text;
  } else {
    out_->push_back({kind, call, std::string(text)});
  }
}

}  // namespace tandem::text
