#include "net/http/cors.h"

#include <algorithm>

namespace tandem::http {
namespace {

constexpr const char* kPreflightAge_s = "600";

// Adds to the head of the answer who may read it.
class CorsWriter final : public ResponseWriter {
 public:
  CorsWriter(std::shared_ptr<ResponseWriter> writer, Headers headers)
      : writer_(std::move(writer)), headers_(std::move(headers)) {}

  void send(int status, Headers headers, std::string body) override {
    writer_->send(status, joined(std::move(headers)), std::move(body));
  }
  void begin_stream(int status, Headers headers, StreamIdle idle) override {
    writer_->begin_stream(status, joined(std::move(headers)), std::move(idle));
  }
  void write(std::string chunk) override { writer_->write(std::move(chunk)); }
  void end() override { writer_->end(); }
  void on_disconnect(std::function<void()> callback) override { writer_->on_disconnect(std::move(callback)); }
  void post(std::function<void()> task) override { writer_->post(std::move(task)); }

 private:
  Headers joined(Headers headers) const {
    headers.insert(headers.end(), headers_.begin(), headers_.end());
    return headers;
  }

  std::shared_ptr<ResponseWriter> writer_;
  Headers headers_;
};

}  // namespace

Status check_origin(const std::string& origin) {
  if (origin == "*") return Done{};
  const size_t scheme = origin.find("://");
  const std::string host = scheme == std::string::npos ? "" : origin.substr(scheme + 3);
  const bool is_plain = std::all_of(origin.begin(), origin.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (scheme == 0 || host.empty() || !is_plain || host.find_first_of("/?#@") != std::string::npos) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + origin + "' is no origin: SCHEME://HOST[:PORT] without a path, or *"};
  }
  return Done{};
}

Handler with_cors(std::vector<std::string> origins, Handler handler) {
  if (origins.empty()) return handler;
  const bool is_open = std::ranges::find(origins, "*") != origins.end();
  return [origins = std::move(origins), is_open, handler = std::move(handler)](HttpRequest request,
                                                                               std::shared_ptr<ResponseWriter> writer) {
    const std::string origin(request.header("Origin"));
    const bool is_listed = is_open || std::ranges::find(origins, origin) != origins.end();
    // Caches between must not give one origin's answer to another.
    Headers headers = {{"Vary", "Origin"}};
    if (!origin.empty() && is_listed) {
      headers.emplace_back("Access-Control-Allow-Origin", is_open ? "*" : origin);
      headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    }
    const bool is_preflight =
        request.method == "OPTIONS" && !origin.empty() && !request.header("Access-Control-Request-Method").empty();
    if (!is_preflight) {
      handler(std::move(request), std::make_shared<CorsWriter>(std::move(writer), std::move(headers)));
      return;
    }
    if (is_listed) {
      headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
      headers.emplace_back("Access-Control-Allow-Headers", request.header("Access-Control-Request-Headers"));
      headers.emplace_back("Access-Control-Max-Age", kPreflightAge_s);
    }
    writer->send(204, std::move(headers), {});
  };
}

}  // namespace tandem::http
