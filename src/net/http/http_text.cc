#include "net/http/http_text.h"

#include <ctime>

#include "base/json.h"
#include "net/http/http_types.h"

namespace tandem::http {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Now, as RFC 9110, 5.6.7 wants it.
std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  return std::string(text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts));
}

}  // namespace

std::string default_error_body(int status, std::string_view message, std::string_view) {
  JsonWriter json;
  json.begin_object().key("error").begin_object().key("message").string(message).key("code").integer(status);
  return json.end_object().end_object().take();
}

void append_status_line(std::string& out, std::string_view version, int status) {
  out.append(version)
      .append(" ")
      .append(std::to_string(status))
      .append(" ")
      .append(reason_phrase(status))
      .append("\r\n");
  append_header(out, "Date", http_date());
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    if (!is_escape) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])));
    i += 2;
  }
  return out;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (char c : value) out.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c);
  out.append("\r\n");
}

}  // namespace tandem::http
