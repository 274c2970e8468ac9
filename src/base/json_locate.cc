#include "base/json_locate.h"

#include <string>

namespace tandem {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  size_t fault() {
    if (!values()) return at_;
    space();
    return at_ == text_.size() ? std::string_view::npos : at_;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void space() {
    while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
  }
  bool take(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  // One value with all that is inside it. No recursion: the text may nest as deep as it is long.
  bool values() {
    std::string open;  // brackets not closed yet
    while (true) {
      space();
      if (take('{')) {
        space();
        if (!take('}')) {
          open.push_back('{');
          if (!name()) return false;
          continue;
        }
      } else if (take('[')) {
        space();
        if (!take(']')) {
          open.push_back('[');
          continue;
        }
      } else if (!scalar()) {
        return false;
      }
      if (!after_value(open)) return false;
      if (open.empty()) return true;
    }
  }

  // Closes what ends here. True with `open` empty: the outermost value is complete.
  bool after_value(std::string& open) {
    while (!open.empty()) {
      space();
      if (take(',')) return open.back() == '[' || name();
      if (!take(open.back() == '[' ? ']' : '}')) return false;
      open.pop_back();
    }
    return true;
  }

  bool name() {
    space();
    if (peek() != '"' || !string()) return false;
    space();
    return take(':');
  }

  bool scalar() {
    if (peek() == '"') return string();
    for (std::string_view word : {"true", "false", "null"}) {
      if (peek() != word[0]) continue;
      for (char letter : word) {
        if (!take(letter)) return false;
      }
      return true;
    }
    return number();
  }

  bool string() {
    ++at_;
    while (at_ < text_.size()) {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte < 0x20) return false;
      ++at_;
      if (byte == '"') return true;
      if (byte != '\\') continue;
      if (std::string_view("\"\\/bfnrtu").find(peek()) == std::string_view::npos || at_ >= text_.size()) return false;
      if (text_[at_++] != 'u') continue;
      unsigned first = 0, second = 0;
      if (!hex4(first)) return false;
      if (first < 0xD800 || first > 0xDFFF) continue;
      if (first >= 0xDC00) return false;
      if (!take('\\') || !take('u') || !hex4(second)) return false;
      if (second < 0xDC00 || second > 0xDFFF) return false;
    }
    return false;
  }

  bool hex4(unsigned& out) {
    out = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      if (c >= '0' && c <= '9')
        out = out * 16 + static_cast<unsigned>(c - '0');
      else if (c >= 'a' && c <= 'f')
        out = out * 16 + static_cast<unsigned>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        out = out * 16 + static_cast<unsigned>(c - 'A' + 10);
      else
        return false;
    }
    return true;
  }

  bool digits() {
    const size_t from = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > from;
  }

  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (!take('+')) take('-');
      return digits();
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

size_t locate_json_fault(std::string_view text) { return Scanner(text).fault(); }

}  // namespace tandem
