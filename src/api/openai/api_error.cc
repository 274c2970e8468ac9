#include "api/openai/api_error.h"

#include <algorithm>
#include <cmath>

namespace tandem::openai {
namespace {

std::string_view type_of_status(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "internal_error";
  }
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kExhausted:
    case ErrorCode::kDeadline:
      return 429;
    case ErrorCode::kUnavailable:
    case ErrorCode::kCancelled:
      return 503;
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

}  // namespace

ApiError invalid_request(std::string param, std::string message, std::string code) {
  return {400, "invalid_request_error", std::move(message), std::move(param), std::move(code), 0};
}

ApiError api_error(const Error& error, double retry_after_s) {
  ApiError out;
  out.status = status_of(error.code);
  out.type = type_of_status(out.status);
  out.message = error.message;
  if (out.status == 429 || out.status == 503) out.retry_after_s = std::max(retry_after_s, 1.0);
  return out;
}

std::string error_json(const ApiError& error) {
  JsonWriter json;
  const auto text_or_null = [&json](const std::string& text) { text.empty() ? json.null() : json.string(text); };
  json.begin_object().key("error").begin_object();
  json.key("message").string(error.message).key("type").string(error.type).key("param");
  text_or_null(error.param);
  json.key("code");
  text_or_null(error.code);
  return json.end_object().end_object().take();
}

ApiError error_of_status(int status, std::string_view message) {
  ApiError error;
  error.status = status;
  error.type = type_of_status(status);
  error.message = message;
  return error;
}

std::string error_json(int status, std::string_view message) { return error_json(error_of_status(status, message)); }

http::Headers error_headers(const ApiError& error) {
  http::Headers headers = {{"Content-Type", "application/json"}};
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.retry_after_s > 0) {
    const double whole_s = std::clamp(std::ceil(error.retry_after_s), 1.0, 3600.0);
    headers.emplace_back("Retry-After", std::to_string(static_cast<int>(whole_s)));
  }
  return headers;
}

}  // namespace tandem::openai
