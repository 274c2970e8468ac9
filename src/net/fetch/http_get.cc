#include "net/fetch/http_get.h"

#include <curl/curl.h>
#include <strings.h>

#include <charconv>
#include <memory>
#include <mutex>
#include <utility>

namespace tandem::fetch {
namespace {

constexpr size_t kMaxErrorTextBytes = 300;
constexpr long kLowSpeedBytesPerS = 1;

struct CurlDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlHandle = std::unique_ptr<CURL, CurlDeleter>;
using CurlUrl = std::unique_ptr<CURLU, CurlDeleter>;
using CurlList = std::unique_ptr<curl_slist, CurlDeleter>;

void initialise_library() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' || text.back() == '\n'))
    text.remove_suffix(1);
  return text;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// "bytes 5-9/10"
void read_content_range(std::string_view text, HttpHead& head) {
  if (!text.starts_with("bytes ")) return;
  head.range_first_byte = parse_number(trim(text.substr(6)));
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) head.range_total_bytes = parse_number(text.substr(slash + 1));
}

void read_header(std::string_view line, HttpHead& head) {
  if (line.starts_with("HTTP/")) {
    head = HttpHead{};  // the head of an informational reply came before
    const size_t space = line.find(' ');
    if (space != std::string_view::npos)
      head.status = static_cast<int>(parse_number(line.substr(space + 1)).value_or(0));
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trim(line.substr(colon + 1));
  if (equals_ignoring_case(name, "etag")) head.entity_tag = value;
  if (equals_ignoring_case(name, "content-length")) head.content_length = parse_number(value);
  if (equals_ignoring_case(name, "content-range")) read_content_range(value, head);
  // Only seconds: a date would need the server's clock to agree with ours.
  if (equals_ignoring_case(name, "retry-after")) {
    if (const auto seconds = parse_number(value)) head.retry_after_s = static_cast<int64_t>(*seconds);
  }
}

struct Transfer {
  HttpReply reply;
  const HttpSink* sink;
};

size_t on_header(char* bytes, size_t size, size_t count, void* context) {
  read_header({bytes, size * count}, static_cast<Transfer*>(context)->reply.head);
  return size * count;
}

size_t on_body(char* bytes, size_t size, size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  const std::string_view piece(bytes, size * count);
  HttpReply& reply = transfer.reply;
  if (reply.head.status / 100 != 2) {
    reply.error_text.append(
        piece.substr(0, kMaxErrorTextBytes - std::min(kMaxErrorTextBytes, reply.error_text.size())));
    return piece.size();
  }
  Status status = (*transfer.sink)(reply.head, piece);
  if (status) return piece.size();
  reply.failure = HttpFailure{std::move(status).error(), false};
  return CURL_WRITEFUNC_ERROR;
}

std::string url_part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  std::string copy(text);
  curl_free(text);
  return copy;
}

struct Origin {
  std::string scheme, host, port;
  bool operator==(const Origin&) const = default;
};

std::optional<Origin> origin_of(const std::string& text) {
  const CurlUrl url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return std::nullopt;
  return Origin{url_part(url.get(), CURLUPART_SCHEME), url_part(url.get(), CURLUPART_HOST),
                url_part(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT)};
}

// `what`: method and printable URL.
HttpFailure transfer_failure(const std::string& what, CURLcode code, const char* detail, int stall_timeout_s) {
  std::string message = what + ": ";
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return {Error{ErrorCode::kUnavailable, message + "the host name is not known: " + detail}, true};
    case CURLE_COULDNT_CONNECT:
      return {Error{ErrorCode::kUnavailable, message + "no connection: " + detail}, true};
    case CURLE_PARTIAL_FILE:
      return {Error{ErrorCode::kUnavailable, message + "the line broke before the whole body came: " + detail}, true};
    case CURLE_OPERATION_TIMEDOUT:
      return {Error{ErrorCode::kDeadline, message + "nothing came for " + std::to_string(stall_timeout_s) + " s"},
              true};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return {Error{ErrorCode::kInvalidArgument, message + "the server's certificate is not trusted: " + detail},
              false};
    case CURLE_SSL_CONNECT_ERROR:
      return {Error{ErrorCode::kUnavailable, message + "TLS: " + detail}, true};
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return {Error{ErrorCode::kUnavailable, message + "the line broke: " + detail}, true};
    default:
      return {Error{ErrorCode::kInvalidArgument, message + detail}, false};
  }
}

void set_basics(CURL* curl, const std::string& url, int connect_timeout_s, int stall_timeout_s, char* detail) {
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "tandem");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(connect_timeout_s));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kLowSpeedBytesPerS);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(stall_timeout_s));
}

const char* detail_of(CURLcode code, const char* detail) {
  return detail[0] != '\0' ? detail : curl_easy_strerror(code);
}

std::string bearer_header(const std::string& token) { return "Authorization: Bearer " + token; }

CurlList request_headers(const HttpGet& request, bool sends_token) {
  curl_slist* list = nullptr;
  if (sends_token && !request.bearer_token.empty())
    list = curl_slist_append(list, bearer_header(request.bearer_token).c_str());
  if (request.first_byte > 0) list = curl_slist_append(list, ("If-Range: " + request.if_range).c_str());
  return CurlList(list);
}

// One GET, no redirect followed. `next_url` is where a redirect leads.
HttpReply get_once(const HttpGet& request, const std::string& url, bool sends_token, const HttpSink& sink,
                   std::string& next_url) {
  Transfer transfer{{}, &sink};
  const CurlHandle handle(curl_easy_init());
  CURL* curl = handle.get();
  char detail[CURL_ERROR_SIZE] = "";
  const CurlList headers = request_headers(request, sends_token);
  set_basics(curl, url, request.connect_timeout_s, request.stall_timeout_s, detail);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  // As a header, not CURLOPT_RESUME_FROM: curl makes a server that ignores the range an error, we start again.
  std::string range;
  if (request.first_byte > 0) {
    range = std::to_string(request.first_byte) + "-";
    curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  if (code != CURLE_OK && !transfer.reply.failure) {
    transfer.reply.failure = transfer_failure("GET " + printable_url(request.url), code, detail_of(code, detail),
                                              request.stall_timeout_s);
  }
  const char* target = nullptr;
  if (curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &target) == CURLE_OK && target != nullptr) next_url = target;
  return std::move(transfer.reply);
}

struct AnswerBody {
  std::string text;
  size_t max_bytes;
};

size_t on_answer(char* bytes, size_t size, size_t count, void* context) {
  auto& body = *static_cast<AnswerBody*>(context);
  if (size * count > body.max_bytes - body.text.size()) return CURL_WRITEFUNC_ERROR;
  body.text.append(bytes, size * count);
  return size * count;
}

void set_tls(CURL* curl, const HttpTls& tls) {
  if (!tls.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, tls.ca_file.c_str());
  if (!tls.certificate_file.empty()) curl_easy_setopt(curl, CURLOPT_SSLCERT, tls.certificate_file.c_str());
  if (!tls.key_file.empty()) curl_easy_setopt(curl, CURLOPT_SSLKEY, tls.key_file.c_str());
}

Error call_failure(const HttpCall& call, CURLcode code, const char* detail) {
  const std::string what = (call.json ? "POST " : "GET ") + printable_url(call.url);
  if (code == CURLE_WRITE_ERROR) {
    return {ErrorCode::kInvalidArgument,
            what + ": the answer is longer than " + std::to_string(call.max_answer_bytes) + " bytes"};
  }
  if (code == CURLE_OPERATION_TIMEDOUT && call.timeout_ms > 0) {
    return {ErrorCode::kDeadline, what + ": no answer within " + std::to_string(call.timeout_ms) + " ms"};
  }
  return transfer_failure(what, code, detail, call.stall_timeout_s).error;
}

HttpReply failed(const HttpGet& request, const std::string& why) {
  HttpReply reply;
  reply.failure =
      HttpFailure{Error{ErrorCode::kInvalidArgument, "GET " + printable_url(request.url) + ": " + why}, false};
  return reply;
}

}  // namespace

HttpReply http_get(const HttpGet& request, const HttpSink& sink) {
  initialise_library();
  const std::optional<Origin> first = origin_of(request.url);
  if (!first || (first->scheme != "http" && first->scheme != "https"))
    return failed(request, "not an http or https URL");
  std::string url = request.url;
  bool sends_token = true;
  for (int num_redirects = 0;; ++num_redirects) {
    std::string next_url;
    HttpReply reply = get_once(request, url, sends_token, sink, next_url);
    if (reply.failure || next_url.empty()) return reply;
    if (num_redirects == request.max_redirects)
      return failed(request, "more than " + std::to_string(request.max_redirects) + " redirects");
    const std::optional<Origin> next = origin_of(next_url);
    if (!next || (next->scheme != "http" && next->scheme != "https"))
      return failed(request, "redirected to no http URL");
    if (first->scheme == "https" && next->scheme != "https") return failed(request, "redirected from https to http");
    sends_token = sends_token && *next == *first;
    url = std::move(next_url);
  }
}

HttpClient::HttpClient() {
  initialise_library();
  handle_ = curl_easy_init();
}

HttpClient::~HttpClient() { curl_easy_cleanup(handle_); }

Result<HttpAnswer> HttpClient::call(const HttpCall& call) {
  CURL* curl = handle_;
  curl_easy_reset(curl);  // the options, not the connections
  char detail[CURL_ERROR_SIZE] = "";
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  if (!call.bearer_token.empty()) list = curl_slist_append(list, bearer_header(call.bearer_token).c_str());
  const CurlList headers(list);
  AnswerBody body{{}, call.max_answer_bytes};
  set_basics(curl, call.url, call.connect_timeout_s, call.stall_timeout_s, detail);
  set_tls(curl, call.tls);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(call.timeout_ms));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_answer);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
  if (call.json) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.json->size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call.json->c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);  // it outlives `detail`
  if (code != CURLE_OK) return call_failure(call, code, detail_of(code, detail));
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return HttpAnswer{static_cast<int>(status), std::move(body.text)};
}

Result<HttpAnswer> http_call(const HttpCall& call) { return HttpClient().call(call); }

Error http_status_error(const std::string& url, const HttpReply& reply) {
  const int status = reply.head.status;
  std::string message = "GET " + printable_url(url) + ": HTTP " + std::to_string(status);
  if (status == 401 || status == 403) message += ", the token is missing or not accepted";
  const std::string_view text = trim(std::string_view(reply.error_text).substr(0, reply.error_text.find('\n')));
  // A page is no message.
  if (!text.empty() && text.front() != '<') message.append(": ").append(text);
  ErrorCode code = ErrorCode::kInvalidArgument;
  if (status == 404 || status == 410)
    code = ErrorCode::kNotFound;
  else if (status == 429)
    code = ErrorCode::kExhausted;
  else if (status >= 500)
    code = ErrorCode::kUnavailable;
  return Error{code, std::move(message)};
}

std::string printable_url(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return std::string(url);
  const std::string_view rest = url.substr(scheme + 3);
  const size_t at = rest.substr(0, rest.find('/')).rfind('@');
  return std::string(url.substr(0, scheme + 3)) +
         std::string(at == std::string_view::npos ? rest : rest.substr(at + 1));
}

}  // namespace tandem::fetch
