#pragma once
// HttpServer: HTTP/1.0 and 1.1 with keep-alive, pipelining (answered in order), limits and streaming.
//
// Each connection lives on one of a few I/O threads; nothing of it is shared. Boost.Beast stays inside http_server.cc.
// Source: RFC 9112; why Beast: docs/adr/0006-http-beast.md.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/http/http_types.h"
#include "net/http/tls_files.h"

namespace tandem::http {

struct HttpServerConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  uint32_t num_threads = 1;
  uint32_t max_connections = 4096;              // more are answered 503 and closed
  size_t header_limit_bytes = 16 << 10;         // 431
  size_t header_limit_fields = 100;             // 431
  size_t body_limit_bytes = 32 << 20;           // 413
  size_t bodies_limit_bytes = size_t{1} << 30;  // of all bodies being read: 503 to the one that goes over it
  size_t stream_buffer_limit_bytes = 1 << 20;   // of a stream; over it when more is written: a slow reader, gone
  int64_t idle_timeout_ms = 75'000;             // between requests
  int64_t header_timeout_ms = 10'000;           // from a request's first byte to its headers' end: 408
  int64_t body_timeout_ms = 60'000;             // from there to the body's end: 408
  int64_t write_timeout_ms = 60'000;            // without progress of a write: the client counts as gone
  ErrorBody error_body;                         // empty: {"error":{"message","code"}}
  std::optional<TlsFiles> tls;                  // absent: plain HTTP
};

class HttpServer {
 public:
  // Listens and serves at once. kUnavailable when the address cannot be bound; what is wrong with the TLS files as
  // TlsContext::open() says it. `handler` is called on I/O threads.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerConfig config, Handler handler);
  ~HttpServer();  // stop(0)

  uint16_t port() const;
  size_t num_connections() const;

  // Accepts no more, closes idle connections, lets answers in flight end until `timeout_ms`, then breaks the rest
  // off (their on_disconnect fires). Returns when no thread runs. Call from one thread that is no I/O thread.
  void stop(int64_t timeout_ms);

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::http
