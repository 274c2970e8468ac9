#pragma once
// ApiError: what goes wrong with a request, as clients see it; the one table from our error codes to HTTP.

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "net/http/http_types.h"

namespace tandem::openai {

struct ApiError {
  int status = 500;
  std::string type;  // invalid_request_error, authentication_error, ...
  std::string message;
  std::string param;         // the field at fault; empty: null
  std::string code;          // such as "context_length_exceeded"; empty: null
  double retry_after_s = 0;  // > 0: sent as Retry-After, rounded up
};

// 400 about the field `param`.
ApiError invalid_request(std::string param, std::string message, std::string code = {});
// What `error` means to the client. retry_after_s: for those that may be tried again.
ApiError api_error(const Error& error, double retry_after_s);

// For errors that are known by their status alone (unknown path, body too large, ...).
ApiError error_of_status(int status, std::string_view message);

// {"error":{...}}
std::string error_json(const ApiError& error);
std::string error_json(int status, std::string_view message);

http::Headers error_headers(const ApiError& error);

}  // namespace tandem::openai
