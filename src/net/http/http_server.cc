#include "net/http/http_server.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/check.h"
#include "base/log.h"
#include "net/http/connection.h"
#include "net/http/http_text.h"

namespace tandem::http {
namespace {

constexpr auto kAwait = net::as_tuple(net::use_awaitable);
constexpr size_t kPipelineLimitBytes = 64 << 10;  // of later requests, read ahead while one is answered
constexpr int64_t kLingerMs = 2000;               // after an error answer: time for the client to read it
constexpr size_t kLingerLimitBytes = 64 << 20;
constexpr int64_t kBreakOffMs = 10'000;  // for a handler that blocks its thread while the server stops
constexpr uint32_t kRefusalSlack = 64;   // connections over the limit that still get a 503

// The ResponseWriter of one request.
class Exchange final : public ResponseWriter {
 public:
  Exchange(std::shared_ptr<Connection> connection, uint64_t id) : connection_(std::move(connection)), id_(id) {}
  ~Exchange() override {
    connection_->io().post([connection = connection_, id = id_] { connection->abandon(id); });
  }

  void send(int status, Headers headers, std::string body) override {
    call(&Connection::send, status, std::move(headers), std::move(body));
  }
  void begin_stream(int status, Headers headers, StreamIdle idle) override {
    call(&Connection::begin_stream, status, std::move(headers), std::move(idle));
  }
  void write(std::string chunk) override { call(&Connection::write, std::move(chunk)); }
  void end() override { call(&Connection::end); }
  void on_disconnect(std::function<void()> callback) override { call(&Connection::on_disconnect, std::move(callback)); }
  void post(std::function<void()> task) override { run(std::move(task)); }

 private:
  template <class Method, class... Args>
  void call(Method method, Args... args) {
    run([connection = connection_, id = id_, method, ... args = std::move(args)] {
      (connection.get()->*method)(id, args...);
    });
  }
  template <class Task>
  void run(Task task) {
    if (connection_->io().is_here())
      task();
    else
      connection_->io().post(std::move(task));
  }

  std::shared_ptr<Connection> connection_;
  uint64_t id_;
};

// Also of an IPv4 client on a socket for both.
bool is_loopback(const net::ip::address& address) {
  if (address.is_v4() || !address.to_v6().is_v4_mapped()) return address.is_loopback();
  return net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6()).is_loopback();
}

}  // namespace

void Connection::start(bool is_refused) {
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
  is_from_loopback_ = is_loopback(stream_.socket().remote_endpoint(ignored).address());
  io_->connections.insert(this);
  new_parser();
  phase_deadline_ = from_now(stream_.is_tls() ? shared_->config.header_timeout_ms : shared_->config.idle_timeout_ms);
  if (shared_->is_draining.load()) {
    close();
    return;
  }
  set_timer();
  net::co_spawn(io_->context, run(shared_from_this(), is_refused), net::detached);
}

// `self` keeps the connection alive while it reads.
net::awaitable<void> Connection::run([[maybe_unused]] std::shared_ptr<Connection> self, bool is_refused) {
  if (stream_.is_tls()) {
    const auto [error] = co_await stream_.tls().async_handshake(net::ssl::stream_base::server, kAwait);
    if (phase_ == Phase::kClosed) co_return;
    if (error) {
      log_line(LogLevel::kDebug, "net/http", "no TLS with a client", {{"why", error.message()}});
      close();
      co_return;
    }
    phase_deadline_ = from_now(shared_->config.idle_timeout_ms);
  }
  if (is_refused) fail(503, "too many connections");
  co_await read_loop();
}

net::awaitable<void> Connection::read_loop() {
  const size_t limit_bytes = std::max(kPipelineLimitBytes, 2 * shared_->config.header_limit_bytes);
  while (phase_ != Phase::kClosed) {
    if (in_.size() >= limit_bytes) {
      resume_.expires_at(TimePoint::max());
      co_await resume_.async_wait(kAwait);
      continue;
    }
    const auto buffer = net::buffer(chunk_);
    error_code error;
    size_t size = 0;
    if (stream_.is_tls())
      std::tie(error, size) = co_await stream_.tls().async_read_some(buffer, kAwait);
    else
      std::tie(error, size) = co_await stream_.socket().async_read_some(buffer, kAwait);
    if (error) {
      on_read_end(error == net::error::eof || error == net::ssl::error::stream_truncated);
      co_return;
    }
    if (phase_ == Phase::kClosing) {
      num_discarded_ += size;
      if (num_discarded_ > kLingerLimitBytes) close();
      continue;
    }
    in_.append(chunk_, size);
    feed();
  }
}

void Connection::on_read_end(bool is_eof) {
  is_read_closed_ = true;
  if (phase_ == Phase::kAnswering || !is_eof)
    lose();
  else if (num_waiting_bytes() == 0)
    close();
}

void Connection::new_parser() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(shared_->config.header_limit_bytes));
  parser_->body_limit(shared_->config.body_limit_bytes);
  parser_->eager(true);
}

// Also of the trailer of a chunked body.
bool Connection::has_too_many_fields() const {
  const auto& fields = parser_->get();
  return static_cast<size_t>(std::distance(fields.begin(), fields.end())) > shared_->config.header_limit_fields;
}

// A handler may answer before it returns; the flag turns what would be recursion into the loop below.
void Connection::feed() {
  if (is_feeding_) return;
  is_feeding_ = true;
  while (feed_once()) {
  }
  is_feeding_ = false;
  resume_.cancel();
  set_timer();
}

bool Connection::feed_once() {
  const bool is_reading = phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody;
  if (!is_reading || in_.empty() || pending_.size() > shared_->config.stream_buffer_limit_bytes) return false;
  if (phase_ == Phase::kIdle) {
    phase_ = Phase::kHeader;
    phase_deadline_ = from_now(shared_->config.header_timeout_ms);
  }
  error_code error;
  const size_t used = parser_->put(net::buffer(in_), error);
  in_.erase(0, used);
  if (error == beast_http::error::header_limit)
    fail(431, "the request's headers are too large");
  else if (error == beast_http::error::body_limit)
    fail(413, "the request's body is too large");
  else if (error && error != beast_http::error::need_more)
    fail(400, "not HTTP/1.1: " + error.message());
  else if (parser_->is_header_done() && !count_body(parser_->get().body().size()))
    fail(503, "too many bodies are being sent at once");
  else if ((parser_->is_header_done() && phase_ == Phase::kHeader) || parser_->is_done()) {
    if (has_too_many_fields()) fail(431, "the request has too many header fields");
  }
  if (phase_ == Phase::kClosing) return false;
  if (parser_->is_header_done() && phase_ == Phase::kHeader) {
    phase_ = Phase::kBody;
    phase_deadline_ = from_now(shared_->config.body_timeout_ms);
    const bool expects = boost::beast::iequals(parser_->get()[beast_http::field::expect], "100-continue");
    if (expects && parser_->get().version() >= 11 && !parser_->is_done()) {
      pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
      flush();
    }
  }
  if (parser_->is_done()) {
    dispatch();
    return true;
  }
  return used > 0;
}

std::string Connection::target_path() const {
  const auto target = parser_->get().target();
  const std::string_view text(target.data(), target.size());
  return percent_decoded(text.substr(0, text.find('?')));
}

// The body being read has so many bytes now. Nobody has asked yet who sends it, so all of them together have a limit.
// False: over it.
bool Connection::count_body(size_t num_bytes) {
  const size_t before = std::exchange(num_body_bytes_, num_bytes);
  const size_t total = shared_->num_body_bytes.fetch_add(num_bytes - before) + num_bytes - before;
  return num_bytes <= before || total <= shared_->config.bodies_limit_bytes;
}

void Connection::dispatch() {
  path_ = target_path();
  count_body(0);
  auto message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  const size_t question = target.find('?');
  request.path = path_;
  if (question != std::string_view::npos) request.query = std::string(target.substr(question + 1));
  for (const auto& field : message) request.headers.emplace_back(field.name_string(), field.value());
  request.body = std::move(message.body());
  request.is_from_loopback = is_from_loopback_;

  is_head_ = message.method() == beast_http::verb::head;
  is_http10_ = message.version() < 11;
  keeps_alive_ = message.keep_alive();
  is_streaming_ = false;
  phase_ = Phase::kAnswering;
  ++id_;
  new_parser();
  shared_->handler(std::move(request), std::make_shared<Exchange>(shared_from_this(), id_));
}

void Connection::append_head(int status, const Headers& headers, std::string_view framing) {
  if (shared_->is_draining.load()) keeps_alive_ = false;
  append_status_line(pending_, is_http10_ ? "HTTP/1.0" : "HTTP/1.1", status);
  for (const auto& [name, value] : headers) append_header(pending_, name, value);
  pending_.append(framing);
  if (!keeps_alive_)
    append_header(pending_, "Connection", "close");
  else if (is_http10_)
    append_header(pending_, "Connection", "keep-alive");
  pending_ += "\r\n";
}

void Connection::send(uint64_t id, int status, const Headers& headers, const std::string& body) {
  if (id != id_ || phase_ != Phase::kAnswering || is_streaming_) return;
  const std::string framing = status == 204 ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n";
  append_head(status, headers, framing);
  if (!is_head_ && status != 204) pending_ += body;
  finish_answer();
}

void Connection::begin_stream(uint64_t id, int status, const Headers& headers, StreamIdle idle) {
  if (id != id_ || phase_ != Phase::kAnswering || is_streaming_) return;
  if (is_http10_) keeps_alive_ = false;
  append_head(status, headers, is_http10_ ? "" : "Transfer-Encoding: chunked\r\n");
  is_streaming_ = true;
  idle_ = std::move(idle);
  last_output_ = SteadyClock::now();
  flush();
}

void Connection::write(uint64_t id, std::string_view chunk) {
  if (id != id_ || phase_ != Phase::kAnswering || !is_streaming_ || chunk.empty() || is_head_) return;
  // A chunk may be larger than the bound by itself, and takes its time on the way, also while the head is still being
  // written; what gathers beside it may not.
  if (pending_.size() > shared_->config.stream_buffer_limit_bytes + largest_pending_) {
    log_warning("net/http", "a client reads too slowly", {{"waiting_bytes", std::to_string(num_waiting_bytes())}});
    lose();
    return;
  }
  if (is_http10_) {
    pending_ += chunk;
  } else {
    char size[20];
    const auto digits = std::to_chars(size, size + sizeof(size), chunk.size(), 16).ptr;
    pending_.append(size, digits).append("\r\n").append(chunk).append("\r\n");
  }
  largest_pending_ = std::max(largest_pending_, chunk.size());
  last_output_ = SteadyClock::now();
  flush();
}

void Connection::end(uint64_t id) {
  if (id != id_ || phase_ != Phase::kAnswering || !is_streaming_) return;
  if (!is_http10_ && !is_head_) pending_ += "0\r\n\r\n";
  finish_answer();
}

void Connection::on_disconnect(uint64_t id, std::function<void()> callback) {
  if (id != id_ || phase_ == Phase::kClosed)
    callback();
  else if (phase_ == Phase::kAnswering)
    on_disconnect_ = std::move(callback);
}

void Connection::abandon(uint64_t id) {
  if (id != id_ || phase_ != Phase::kAnswering) return;
  if (is_streaming_)
    lose();
  else
    send(id, 500, {{"Content-Type", "application/json"}},
         shared_->config.error_body(500, "no answer was given", path_));
}

void Connection::finish_answer() {
  on_disconnect_ = nullptr;
  phase_ = keeps_alive_ && !is_read_closed_ ? Phase::kIdle : Phase::kClosing;
  phase_deadline_ = from_now(phase_ == Phase::kIdle ? shared_->config.idle_timeout_ms : kLingerMs);
  flush();
  if (phase_ == Phase::kIdle) feed();
}

void Connection::fail(int status, std::string_view message) {
  count_body(0);
  is_head_ = is_http10_ = keeps_alive_ = false;
  ++id_;
  phase_ = Phase::kAnswering;
  is_streaming_ = false;
  Headers headers = {{"Content-Type", "application/json"}};
  if (status == 503) headers.emplace_back("Retry-After", "1");
  send(id_, status, headers, shared_->config.error_body(status, message, target_path()));
}

void Connection::flush() {
  if (!writing_.empty() || pending_.empty() || phase_ == Phase::kClosed) return;
  std::swap(writing_, pending_);
  largest_pending_ = 0;
  write_started_ = SteadyClock::now();
  stream_.async_write(net::buffer(writing_),
                      [self = shared_from_this()](error_code error, size_t) { self->on_written(error); });
  set_timer();
}

void Connection::on_written(error_code error) {
  writing_.clear();
  if (error) {
    lose();
    return;
  }
  flush();
  if (num_waiting_bytes() > 0) return;
  if (phase_ == Phase::kClosing)
    linger_or_close();
  else if (is_read_closed_)
    close();
  else
    feed();
}

// Closing a socket with unread bytes resets the connection, and the client may lose the answer: so it gets our end of
// stream first, and a moment to read.
void Connection::linger_or_close() {
  if (is_read_closed_) {
    close();
    return;
  }
  stream_.finish_writing(shared_from_this());
  phase_deadline_ = from_now(kLingerMs);
  set_timer();
}

void Connection::lose() {
  const auto callback = std::move(on_disconnect_);
  on_disconnect_ = nullptr;
  close();
  if (callback) callback();
}

void Connection::drain() {
  if (phase_ == Phase::kAnswering || phase_ == Phase::kClosed) return;
  if (num_waiting_bytes() > 0)
    phase_ = Phase::kClosing;
  else
    close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  ++id_;
  count_body(0);
  pending_.clear();
  error_code ignored;
  stream_.socket().close(ignored);
  timer_.cancel();
  resume_.cancel();
  io_->connections.erase(this);
  Lock lock(shared_->mutex);
  --shared_->num_connections;
  shared_->changed.notify_all();
}

TimePoint Connection::next_deadline() const {
  TimePoint next = phase_ == Phase::kAnswering ? TimePoint::max() : phase_deadline_;
  if (!writing_.empty()) {
    next = std::min(next, write_started_ + std::chrono::milliseconds(shared_->config.write_timeout_ms));
  }
  if (phase_ == Phase::kAnswering && is_streaming_ && idle_.interval_ms > 0) {
    next = std::min(next, last_output_ + std::chrono::milliseconds(idle_.interval_ms));
  }
  return next;
}

// The timer may ring early (deadlines move on without touching it) but never late.
void Connection::set_timer() {
  const TimePoint next = next_deadline();
  if (phase_ == Phase::kClosed || next >= armed_for_) return;
  armed_for_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this(), next](error_code error) {
    if (error || self->armed_for_ != next) return;
    self->armed_for_ = TimePoint::max();
    self->on_timer();
  });
}

void Connection::on_timer() {
  if (phase_ == Phase::kClosed) return;
  const TimePoint now = SteadyClock::now();
  if (!writing_.empty() && now >= write_started_ + std::chrono::milliseconds(shared_->config.write_timeout_ms)) {
    lose();
  } else if (phase_ == Phase::kAnswering) {
    if (next_deadline() <= now) write(id_, idle_.text);
  } else if (now >= phase_deadline_) {
    if (phase_ == Phase::kHeader || phase_ == Phase::kBody)
      fail(408, "the request did not arrive in time");
    else
      close();
  }
  set_timer();
}

struct HttpServer::State {
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::vector<std::shared_ptr<IoThread>> threads;
  std::unique_ptr<tcp::acceptor> acceptor;
  uint16_t port = 0;
  bool is_stopped = false;

  Status listen();
  net::awaitable<void> accept_loop();
  void admit(std::shared_ptr<IoThread> io, tcp::socket socket);
  bool wait_until_empty(int64_t timeout_ms);
  template <class Action>
  void for_all(Action action);
};

Status HttpServer::State::listen() {
  error_code error;
  auto& context = threads[0]->context;
  const auto found = tcp::resolver(context).resolve(shared->config.host, std::to_string(shared->config.port), error);
  const auto fault = [&](std::string_view what) {
    return Error{ErrorCode::kUnavailable, "cannot listen on " + shared->config.host + ":" +
                                              std::to_string(shared->config.port) + ": " + std::string(what)};
  };
  if (error || found.empty()) return fault("unknown host");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor = std::make_unique<tcp::acceptor>(context);
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(tcp::acceptor::max_listen_connections, error);
  if (error) return fault(error.message());
  port = acceptor->local_endpoint(error).port();
  return Done{};
}

net::awaitable<void> HttpServer::State::accept_loop() {
  net::steady_timer pause(threads[0]->context);
  for (size_t next = 0;; ++next) {
    const auto io = threads[next % threads.size()];
    auto [error, socket] = co_await acceptor->async_accept(io->context, kAwait);
    if (!acceptor->is_open()) co_return;
    if (error) {  // out of descriptors, most likely: some may come free
      log_warning("net/http", "cannot accept a connection", {{"reason", error.message()}});
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    admit(io, std::move(socket));
  }
}

void HttpServer::State::admit(std::shared_ptr<IoThread> io, tcp::socket socket) {
  bool is_refused = false;
  {
    Lock lock(shared->mutex);
    if (shared->num_connections >= shared->config.max_connections + kRefusalSlack) return;
    is_refused = ++shared->num_connections > shared->config.max_connections;
  }
  auto connection = std::make_shared<Connection>(io, shared, std::move(socket));
  io->post([connection, is_refused] { connection->start(is_refused); });
}

bool HttpServer::State::wait_until_empty(int64_t timeout_ms) {
  const TimePoint deadline = SteadyClock::now() + std::chrono::milliseconds(timeout_ms);
  Lock lock(shared->mutex);
  while (shared->num_connections > 0) {
    const double left_s = std::chrono::duration<double>(deadline - SteadyClock::now()).count();
    if (left_s <= 0) return false;
    shared->changed.wait_for(shared->mutex, left_s);
  }
  return true;
}

template <class Action>
void HttpServer::State::for_all(Action action) {
  for (const auto& io : threads) {
    io->post([io = io.get(), action] {
      const auto now = io->connections;  // the action takes some out
      for (Connection* connection : now) action(connection->shared_from_this());
    });
  }
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerConfig config, Handler handler) {
  TANDEM_CHECK(config.num_threads > 0);
  auto state = std::make_unique<State>();
  if (!config.error_body) config.error_body = default_error_body;
  if (config.tls) {
    TRY_ASSIGN(state->shared->tls, open_tls(*config.tls));
  }
  state->shared->config = std::move(config);
  state->shared->handler = std::move(handler);
  for (uint32_t i = 0; i < state->shared->config.num_threads; ++i) {
    state->threads.push_back(std::make_shared<IoThread>());
  }
  TRY(state->listen());
  net::co_spawn(state->threads[0]->context, state->accept_loop(), net::detached);
  for (const auto& io : state->threads) io->thread = std::thread([io = io.get()] { io->context.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() { stop(0); }
uint16_t HttpServer::port() const { return state_->port; }
size_t HttpServer::num_connections() const { return state_->shared->count(); }

void HttpServer::stop(int64_t timeout_ms) {
  if (state_->is_stopped) return;
  state_->is_stopped = true;
  state_->shared->is_draining.store(true);
  state_->threads[0]->post([state = state_.get()] {
    error_code ignored;
    state->acceptor->close(ignored);
  });
  state_->for_all([](const std::shared_ptr<Connection>& connection) { connection->drain(); });
  if (!state_->wait_until_empty(timeout_ms)) {
    state_->for_all([](const std::shared_ptr<Connection>& connection) { connection->lose(); });
    state_->wait_until_empty(kBreakOffMs);
  }
  for (const auto& io : state_->threads) {
    {
      Lock lock(io->mutex);
      io->is_stopped = true;
    }
    io->work.reset();
    io->context.stop();
    io->thread.join();
    io->context.restart();
    io->context.poll();  // what was posted before the end: frees what it holds
  }
}

}  // namespace tandem::http
