#include "net/transport/tcp_connection.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "net/transport/stream_greeting.h"

namespace tandem::transport {
namespace {

constexpr size_t kInputBytes = 64 << 10;
constexpr size_t kMaxRanges = 64;
constexpr size_t kTurnBytes = 4 << 20;  // moved before other connections have their turn

size_t total_size(const iovec* ranges, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += ranges[i].iov_len;
  return size;
}

}  // namespace

TcpConnection::TcpConnection(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, ConnectionHandler* handler,
                             Lobby* lobby)
    : FramedConnection(loop, limits, handler, lobby),
      socket_(std::move(socket)),
      input_(std::make_unique_for_overwrite<std::byte[]>(kInputBytes)) {
  set_stream_options(socket_.get(), limits);
}

Status TcpConnection::start(uint32_t epoll_events) {
  watched_events_ = epoll_events;
  return loop_.watch(socket_.get(), epoll_events, *this);
}

Result<std::unique_ptr<Connection>> TcpConnection::connect(EventLoop& loop, const TransportLimits& limits,
                                                           OwnedFd socket, Bytes greeting, ConnectionHandler& handler) {
  if (greeting.size() > std::min<size_t>(limits.max_greeting_bytes, kInputBytes / 2)) {
    return Error{ErrorCode::kInvalidArgument, "the greeting is too long"};
  }
  std::unique_ptr<TcpConnection> made(new TcpConnection(loop, limits, std::move(socket), &handler, nullptr));
  made->is_connecting_ = true;
  made->owner_greeting_.assign(greeting.begin(), greeting.end());
  TRY(made->start(EPOLLOUT));
  return std::unique_ptr<Connection>(std::move(made));
}

void TcpConnection::accept(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, Lobby& lobby) {
  if (!lobby.has_room()) return;
  std::unique_ptr<TcpConnection> made(new TcpConnection(loop, limits, std::move(socket), nullptr, &lobby));
  if (made->start(EPOLLIN)) lobby.enter(std::move(made));
}

void TcpConnection::release() {
  if (socket_) loop_.unwatch(socket_.get());
  socket_.reset();
}

void TcpConnection::watch(uint32_t epoll_events) {
  if (epoll_events == watched_events_) return;
  watched_events_ = epoll_events;
  if (Status status = loop_.watch(socket_.get(), epoll_events, *this); !status) fail(std::move(status).error());
}

void TcpConnection::on_io(uint32_t epoll_events) {
  if (state_ == State::kGreeting) {
    if (Status status = greet(); !status) fail(std::move(status).error());
    return;
  }
  if (state_ != State::kOpen) return;
  if (is_paused() && (epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    // Reported for as long as it is watched, and not to be read before resume().
    loop_.unwatch(socket_.get());
    watched_events_ = 0;
    return;
  }
  is_blocked_ = is_blocked_ && (epoll_events & EPOLLOUT) == 0;
  if (!is_blocked_) flush();
  if (state_ == State::kOpen && !is_paused()) fill();
  if (state_ == State::kOpen) watch((is_paused() ? 0u : EPOLLIN) | (is_blocked_ ? EPOLLOUT : 0u));
  settle();
}

Status TcpConnection::greet() {
  if (!is_connecting_) return take_greeting();
  TRY(check_connected(socket_.get()));
  is_connecting_ = false;
  TRY(send_greeting(GreetingKind::kHello, owner_greeting_));
  watch(EPOLLIN);
  return Done{};
}

Status TcpConnection::send_greeting(GreetingKind kind, Bytes owner_greeting) const {
  return send_stream_greeting(socket_.get(), {.kind = kind, .connection_id = static_cast<uint64_t>(id())},
                              owner_greeting, {});
}

Status TcpConnection::take_greeting() {
  TRY_ASSIGN(const size_t size, receive_stream_greeting(socket_.get(), {input_.get(), kInputBytes}, input_end_,
                                                        is_accepting(), limits_));
  if (size == 0) return Done{};
  const Bytes input(input_.get(), size);
  const auto greeting = copy_from<Greeting>(input);
  if (greeting.carrier_bytes != 0) return Error{ErrorCode::kCorrupt, "the peer's greeting is of another carrier"};
  input_begin_ = size;  // frames may be behind it already
  if (is_accepting()) {
    if (!admit(input.subspan(sizeof greeting))) {
      TRY(send_greeting(GreetingKind::kRefusal, {}));
      return Error{ErrorCode::kCancelled, "refused"};
    }
    TRY(send_greeting(GreetingKind::kWelcome, {}));
  }
  opened(greeting.connection_id);
  return Done{};
}

void TcpConnection::flush() {
  size_t moved = 0;
  while (!queue_.is_empty() && !is_blocked_) {
    if (moved >= kTurnBytes) return loop_.defer(*this);
    iovec ranges[kMaxRanges];
    msghdr message = {};
    message.msg_iov = ranges;
    message.msg_iovlen = queue_.gather(ranges, kMaxRanges);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      is_blocked_ = true;
      return watch(watched_events_ | EPOLLOUT);
    }
    if (sent < 0) {
      // What the peer sent before it went is still to be read; the end comes behind it.
      const Error reason = peer_gone(std::string("send: ") + strerror(errno));
      if (!is_paused()) fill();
      return fail(reason);
    }
    queue_.advance(static_cast<size_t>(sent));
    note_progress();
    moved += static_cast<size_t>(sent);
  }
}

void TcpConnection::fill() {
  watch(watched_events_ | EPOLLIN);  // it was not watched while paused
  size_t moved = 0;
  while (!is_stopped()) {
    if (input_begin_ < input_end_) {
      if (!feed_input()) return;
      continue;
    }
    if (moved >= kTurnBytes) return;  // the socket stays readable: other connections first
    input_begin_ = input_end_ = 0;
    const Read read = read_some();
    moved += kInputBytes;
    if (read == Read::kFailed) return;
    if (read == Read::kNoMore && input_begin_ == input_end_) return;
  }
  // Bytes that wait in our buffer wake nobody: resume() looks at them.
}

// False when the connection ended.
bool TcpConnection::feed_input() {
  const Bytes unread(input_.get() + input_begin_, input_end_ - input_begin_);
  auto used = reader_.feed(unread, *this);
  if (!used) return fail(used.error()), false;
  input_begin_ += *used;
  return state_ != State::kClosed;
}

TcpConnection::Read TcpConnection::read_some() {
  iovec ranges[kMaxRanges];
  const size_t count = reader_.direct(ranges, kMaxRanges - 1);
  const size_t direct_bytes = total_size(ranges, count);
  ranges[count] = {input_.get(), kInputBytes};
  const ssize_t got = readv(socket_.get(), ranges, static_cast<int>(count + 1));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read::kNoMore;
  if (got <= 0) {
    const std::string how = got < 0 ? strerror(errno) : "closed";
    fail(peer_gone("the peer is gone" + std::string(reader_.is_mid_frame() ? " in mid-frame: " : ": ") + how));
    return Read::kFailed;
  }
  note_progress();
  const auto size = static_cast<size_t>(got);
  input_end_ = size - std::min(size, direct_bytes);
  if (direct_bytes > 0) reader_.landed(std::min(size, direct_bytes), *this);
  if (state_ == State::kClosed) return Read::kFailed;
  return size < direct_bytes + kInputBytes ? Read::kNoMore : Read::kMore;
}

}  // namespace tandem::transport
