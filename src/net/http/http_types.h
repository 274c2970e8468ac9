#pragma once
// What a handler sees of HTTP: a whole request, and a ResponseWriter for its answer. No socket, no library type.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET", as sent
  std::string path;    // percent-decoded, without the query
  std::string query;   // after '?', as sent
  Headers headers;
  std::string body;
  bool is_from_loopback = false;  // the client's address is one of this machine's own

  // Value of the first header of that name (any case); empty when absent.
  std::string_view header(std::string_view name) const;
};

// A silent stream sends `text` each time nothing else was sent for `interval_ms`. 0: never.
struct StreamIdle {
  int64_t interval_ms = 0;
  std::string text;
};

// The answer to one request: either send(), or begin_stream(), write()..., end(). Any thread; a thread's calls take
// effect in order on the connection's I/O thread (at once when made there). What comes out of order, twice, or after
// the client has gone is ignored. Dropping the last reference without an answer sends 500; with an open stream it
// breaks the connection off.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void send(int status, Headers headers, std::string body) = 0;

  // Chunked for HTTP/1.1, ended by closing the connection for 1.0. Headers go out at once.
  virtual void begin_stream(int status, Headers headers, StreamIdle idle) = 0;
  // One chunk, sent at once unless an earlier one is still on its way (then they are joined). When more than the
  // configured bound waits for a slow reader, the client counts as gone.
  virtual void write(std::string chunk) = 0;
  virtual void end() = 0;

  // Called at most once, on the I/O thread, when the client goes away before the answer is complete, also while
  // nothing is written. A client that only shuts down its sending side counts as gone too: the two look the same.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  // Runs `task` on the connection's I/O thread, as the calls above. Dropped, not run, once the server has
  // stopped.
  virtual void post(std::function<void()> task) = 0;
};

// Called on an I/O thread: must not wait.
using Handler = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;

// Body of an error that the server itself finds (400, 408, 413, 431, 503, ...), as application/json. path: the
// request's, as HttpRequest has it; empty where it is not known yet.
using ErrorBody = std::function<std::string(int status, std::string_view message, std::string_view path)>;

std::string_view reason_phrase(int status);

}  // namespace tandem::http
