#pragma once
// http_get: one GET over http or https, redirects followed. http_call: one GET or POST to a service of our own, none
// followed. The library (libcurl) stays in http_get.cc.
//
// Blocks the calling thread; any number of threads at once. A bearer token goes only to the scheme, host and port of
// the first URL: once a redirect has led elsewhere it is not sent again. https never falls back to http.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::fetch {

struct HttpGet {
  std::string url;
  std::string bearer_token;  // empty: none
  uint64_t first_byte = 0;   // > 0: asks for the rest from here, given that the entity tag is still `if_range`
  std::string if_range;      // a strong entity tag
  int connect_timeout_s = 30;
  int stall_timeout_s = 30;  // ends a transfer in which not one byte a second came for so long
  int max_redirects = 5;
};

struct HttpHead {
  int status = 0;
  std::string entity_tag;                    // as sent, with its quotes
  std::optional<uint64_t> content_length;    // of this reply's body
  std::optional<uint64_t> range_first_byte;  // of Content-Range
  std::optional<uint64_t> range_total_bytes;
  std::optional<int64_t> retry_after_s;
};

// Why a transfer that began well, or never began, can be tried again.
struct HttpFailure {
  Error error;
  bool is_retriable;
};

struct HttpReply {
  HttpHead head;
  std::string error_text;              // the first bytes of the body of any reply that is not 2xx
  std::optional<HttpFailure> failure;  // the line broke, stalled or was never there, or the sink refused
};

// Gets each piece of a 2xx body. An Error ends the transfer.
using HttpSink = std::function<Status(const HttpHead& head, std::string_view bytes)>;

HttpReply http_get(const HttpGet& request, const HttpSink& sink);

// PEM files. Empty: the system's authorities, and no certificate of our own.
struct HttpTls {
  std::string ca_file, certificate_file, key_file;
};

struct HttpCall {
  std::string url;
  std::optional<std::string> json;  // a POST of it; absent: a GET
  std::string bearer_token;         // empty: none
  int connect_timeout_s = 5;
  int stall_timeout_s = 30;
  int timeout_ms = 0;  // of the whole call; 0: none
  size_t max_answer_bytes = 16 << 20;
  HttpTls tls = {};
};

struct HttpAnswer {
  int status = 0;
  std::string body;  // of any status
};

// No proxy is asked. An Error: no answer came in time, or a longer one than allowed.
Result<HttpAnswer> http_call(const HttpCall& call);

// http_call over and over: keeps its connections open in between. One thread at a time.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  Result<HttpAnswer> call(const HttpCall& call);

 private:
  void* handle_;  // the library's
};

// The Error for a reply that is not 2xx.
Error http_status_error(const std::string& url, const HttpReply& reply);

// The URL without user, password, query and fragment, which can hold secrets: for messages.
std::string printable_url(std::string_view url);

}  // namespace tandem::fetch
