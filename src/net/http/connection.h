#pragma once
// Connection: one client's socket on one I/O thread: reads requests, writes answers, keeps the time-outs. A part of
// http_server.cc, which alone includes it: Boost's headers cost too much to be compiled twice.

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/thread_safety.h"
#include "net/http/client_stream.h"
#include "net/http/http_server.h"

namespace tandem::http {

namespace net = boost::asio;
namespace beast_http = boost::beast::http;
using boost::system::error_code;
using net::ip::tcp;
using SteadyClock = std::chrono::steady_clock;
using TimePoint = SteadyClock::time_point;

constexpr size_t kReadBytes = 8 << 10;

class Connection;

// One I/O thread: its loop and the connections that live on it. Connections keep it alive.
struct IoThread {
  net::io_context context{1};
  net::executor_work_guard<net::io_context::executor_type> work{context.get_executor()};
  std::set<Connection*> connections;  // touched on this thread only
  std::thread thread;
  Mutex mutex;
  bool is_stopped GUARDED_BY(mutex) = false;

  bool is_here() { return context.get_executor().running_in_this_thread(); }

  // A task posted to a stopped loop would hold its connection, and that this loop, for ever: so it is dropped.
  template <class Task>
  void post(Task task) {
    Lock lock(mutex);
    if (!is_stopped) net::post(context, std::move(task));
  }
};

// What all connections share.
struct Shared {
  HttpServerConfig config;
  Handler handler;
  std::shared_ptr<net::ssl::context> tls;  // null: plain HTTP
  std::atomic<bool> is_draining{false};
  std::atomic<size_t> num_body_bytes{0};  // of all bodies being read
  mutable Mutex mutex;
  CondVar changed;
  size_t num_connections GUARDED_BY(mutex) = 0;

  size_t count() const {
    Lock lock(mutex);
    return num_connections;
  }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<IoThread> io, std::shared_ptr<Shared> shared, tcp::socket socket)
      : io_(std::move(io)),
        shared_(std::move(shared)),
        stream_(std::move(socket), shared_->tls.get()),
        timer_(io_->context),
        resume_(io_->context) {}

  void start(bool is_refused);
  void drain();  // idle: close; busy: close after the answer
  void lose();   // the client is gone, or has to go

  // The rest is called by the Exchange of request `id`, on this connection's thread.
  void send(uint64_t id, int status, const Headers& headers, const std::string& body);
  void begin_stream(uint64_t id, int status, const Headers& headers, StreamIdle idle);
  void write(uint64_t id, std::string_view chunk);
  void end(uint64_t id);
  void on_disconnect(uint64_t id, std::function<void()> callback);
  void abandon(uint64_t id);
  IoThread& io() { return *io_; }

 private:
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kClosing, kClosed };
  using Parser = beast_http::request_parser<beast_http::string_body>;

  net::awaitable<void> run(std::shared_ptr<Connection> self, bool is_refused);
  net::awaitable<void> read_loop();
  void on_read_end(bool is_eof);
  void feed();
  bool feed_once();  // false: more bytes are needed, or may not be used yet
  bool has_too_many_fields() const;
  void new_parser();
  std::string target_path() const;  // of the request being read, as far as it is there
  bool count_body(size_t num_bytes);
  void dispatch();
  void fail(int status, std::string_view message);
  void append_head(int status, const Headers& headers, std::string_view framing);
  void finish_answer();
  void flush();
  void on_written(error_code error);
  void linger_or_close();
  void close();
  void set_timer();
  void on_timer();
  TimePoint next_deadline() const;
  size_t num_waiting_bytes() const { return pending_.size() + writing_.size(); }
  TimePoint from_now(int64_t ms) const { return SteadyClock::now() + std::chrono::milliseconds(ms); }

  std::shared_ptr<IoThread> io_;
  std::shared_ptr<Shared> shared_;
  ClientStream stream_;
  net::steady_timer timer_;
  net::steady_timer resume_;  // cancelled to let a paused reader go on
  Phase phase_ = Phase::kIdle;
  TimePoint phase_deadline_;
  TimePoint armed_for_ = TimePoint::max();

  char chunk_[kReadBytes];
  std::string in_;  // read, not parsed
  std::optional<Parser> parser_;
  bool is_feeding_ = false;
  bool is_read_closed_ = false;
  bool is_from_loopback_ = false;
  size_t num_discarded_ = 0;

  uint64_t id_ = 0;  // of the current request
  std::string path_;
  size_t num_body_bytes_ = 0;  // of the body being read, as counted in Shared::num_body_bytes
  bool is_head_ = false, keeps_alive_ = true, is_http10_ = false, is_streaming_ = false;
  StreamIdle idle_;
  TimePoint last_output_;
  std::function<void()> on_disconnect_;

  std::string pending_, writing_;  // output: to be written, and in the socket's hands
  size_t largest_pending_ = 0;     // chunk of a stream in pending_, in bytes
  TimePoint write_started_;
};

}  // namespace tandem::http
