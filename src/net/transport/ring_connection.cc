#include "net/transport/ring_connection.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

namespace tandem::transport {
namespace {

// Published as one: large enough that waking the reader costs little, small enough that it copies along.
constexpr size_t kPieceBytes = 256 << 10;
// Moved before other connections have their turn.
constexpr size_t kTurnBytes = 4 << 20;
constexpr size_t kMaxFiles = 4;  // received with one message; one is right

}  // namespace

RingConnection::RingConnection(EventLoop& loop, const TransportLimits& limits, OwnedFd socket,
                               ConnectionHandler* handler, Lobby* lobby)
    : FramedConnection(loop, limits, handler, lobby),
      socket_(std::move(socket)),
      writer_(own_, peer_),
      ring_reader_(own_, peer_) {}

Status RingConnection::start() {
  TRY_ASSIGN(own_, RingRegion::create(limits_.ring_bytes));
  return loop_.watch(socket_.get(), EPOLLIN, *this);
}

Result<std::unique_ptr<Connection>> RingConnection::connect(EventLoop& loop, const TransportLimits& limits,
                                                            OwnedFd socket, Bytes greeting,
                                                            ConnectionHandler& handler) {
  std::unique_ptr<RingConnection> made(new RingConnection(loop, limits, std::move(socket), &handler, nullptr));
  TRY(made->start());
  TRY(made->send_greeting(GreetingKind::kHello, greeting));
  return std::unique_ptr<Connection>(std::move(made));
}

void RingConnection::accept(EventLoop& loop, const TransportLimits& limits, OwnedFd socket, Lobby& lobby) {
  if (!lobby.has_room()) return;
  std::unique_ptr<RingConnection> made(new RingConnection(loop, limits, std::move(socket), nullptr, &lobby));
  if (made->start()) lobby.enter(std::move(made));
}

void RingConnection::release() {
  if (socket_) loop_.unwatch(socket_.get());
  socket_.reset();
  // A callback on the stack may still look at a payload in the ring.
  loop_.retire(std::make_shared<RingRegion>(std::move(peer_)));
  own_ = RingRegion();
}

void RingConnection::on_io(uint32_t) {
  if (state_ == State::kGreeting) {
    if (Status status = receive_greeting(); !status) fail(std::move(status).error());
    return;
  }
  if (state_ != State::kOpen) return;
  take_wakeups();
  flush();
  if (state_ == State::kOpen && !is_paused()) fill();
  settle();
}

void RingConnection::take_wakeups() {
  char bytes[16];
  for (int i = 0; i < 16; ++i) {
    const ssize_t size = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (size > 0 || (size < 0 && errno == EINTR)) continue;
    if (size < 0 && errno == EAGAIN) return;
    is_peer_gone_ = true;  // what it has written before is still in the ring
    return loop_.unwatch(socket_.get());
  }
}

// When the socket is full, a wake-up is under way; when it is closed, its reader will notice.
void RingConnection::wake_peer() const { ::send(socket_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

void RingConnection::flush() {
  size_t moved = 0;
  while (!queue_.is_empty()) {
    auto room = writer_.room();
    if (room && room->empty()) {
      writer_.announce_sleep();
      room = writer_.room();
    }
    if (!room) return fail(std::move(room).error());
    if (room->empty()) return;
    if (moved >= kTurnBytes) return loop_.defer(*this);
    const size_t size = queue_.copy_to(room->first(std::min(room->size(), kPieceBytes)));
    writer_.publish(size);
    if (writer_.must_wake()) wake_peer();
    note_progress();
    moved += size;
  }
}

void RingConnection::fill() {
  size_t moved = 0, looked_at = 0;
  while (!is_stopped()) {
    auto unread = ring_reader_.available();
    if (unread && unread->size() == looked_at) {
      ring_reader_.announce_sleep();
      unread = ring_reader_.available();
    }
    if (!unread) return fail(std::move(unread).error());
    if (unread->size() == looked_at) {
      if (is_peer_gone_) fail(peer_gone(reader_.is_mid_frame() ? "the peer went in mid-frame" : "the peer is gone"));
      return;
    }
    if (moved >= kTurnBytes) return loop_.defer(*this);
    // A piece at a time where it is copied as it comes: the writer gets its room back sooner.
    const bool is_copied = reader_.is_copying();
    auto used = reader_.feed(is_copied ? unread->first(std::min(unread->size(), kPieceBytes)) : *unread, *this);
    if (!used) return fail(used.error());
    if (state_ == State::kClosed) return;
    looked_at = *used > 0 ? 0 : unread->size();
    if (*used == 0) continue;
    ring_reader_.consume(*used);
    if (ring_reader_.must_wake()) wake_peer();
    note_progress();
    moved += *used;
  }
}

Status RingConnection::send_greeting(GreetingKind kind, Bytes owner_greeting) const {
  const Greeting greeting = {.kind = kind,
                             .connection_id = static_cast<uint64_t>(id()),
                             .ring_bytes = own_.ring_bytes(),
                             .owner_bytes = static_cast<uint32_t>(owner_greeting.size())};
  if (owner_greeting.size() > limits_.max_greeting_bytes) {
    return Error{ErrorCode::kInvalidArgument, "the greeting is too long"};
  }
  iovec ranges[2] = {{const_cast<std::byte*>(object_bytes(greeting).data()), sizeof greeting},
                     {const_cast<std::byte*>(owner_greeting.data()), owner_greeting.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = ranges;
  message.msg_iovlen = 2;
  if (kind != GreetingKind::kRefusal) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* files = CMSG_FIRSTHDR(&message);
    files->cmsg_level = SOL_SOCKET;
    files->cmsg_type = SCM_RIGHTS;
    files->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = own_.fd();
    memcpy(CMSG_DATA(files), &fd, sizeof fd);
  }
  if (sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    return Error{ErrorCode::kUnavailable, std::string("greeting the peer: ") + strerror(errno)};
  }
  return Done{};
}

Status RingConnection::receive_greeting() {
  std::vector<std::byte> bytes(sizeof(Greeting) + limits_.max_greeting_bytes + 1);
  iovec range = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Done{};
  if (size <= 0) return peer_gone("the peer went before it greeted");
  std::vector<OwnedFd> files;  // all of them are ours to close, also those that nobody asked for
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      files.emplace_back(fd);
    }
  }
  if (static_cast<size_t>(size) < sizeof(Greeting) || files.size() > 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    return Error{ErrorCode::kCorrupt, "the peer's greeting is none"};
  }
  return take_greeting(Bytes(bytes.data(), static_cast<size_t>(size)),
                       files.empty() ? OwnedFd() : std::move(files.front()));
}

Status RingConnection::take_greeting(Bytes message, OwnedFd file) {
  const Greeting greeting = copy_from<Greeting>(message);
  TRY(check_greeting(greeting, limits_));
  if (greeting.kind == GreetingKind::kRefusal && !is_accepting()) return peer_gone("the peer refused the connection");
  const GreetingKind expected = is_accepting() ? GreetingKind::kHello : GreetingKind::kWelcome;
  if (greeting.kind != expected || message.size() != sizeof greeting + greeting.owner_bytes || !file) {
    return Error{ErrorCode::kCorrupt, "the peer's greeting is out of order"};
  }
  TRY_ASSIGN(peer_, RingRegion::map_peer(std::move(file), greeting.ring_bytes));
  // A payload that is waited for must fit the ring beside what is before it.
  reader_.set_view_bytes(peer_.ring_bytes() / 2);
  if (is_accepting()) {
    if (!admit(message.subspan(sizeof greeting))) {
      TRY(send_greeting(GreetingKind::kRefusal, {}));
      return Error{ErrorCode::kCancelled, "refused"};
    }
    TRY(send_greeting(GreetingKind::kWelcome, {}));
  }
  own_.close_fd();
  opened(greeting.connection_id);
  return Done{};
}

}  // namespace tandem::transport
