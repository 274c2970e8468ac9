#pragma once
// The small pieces of text that HTTP messages are made of.

#include <string>
#include <string_view>

namespace tandem::http {

// {"error":{"message","code"}}
std::string default_error_body(int status, std::string_view message, std::string_view path = {});

// "HTTP/1.1 200 OK" and the Date header.
void append_status_line(std::string& out, std::string_view version, int status);

// Escapes that are no two hex digits stay as they are.
std::string percent_decoded(std::string_view text);

// "name: value" and the line's end. A value that comes from elsewhere cannot start a new line.
void append_header(std::string& out, std::string_view name, std::string_view value);

}  // namespace tandem::http
