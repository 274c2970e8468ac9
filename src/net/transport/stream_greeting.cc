#include "net/transport/stream_greeting.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

namespace tandem::transport {
namespace {

Error gone(std::string how) { return {ErrorCode::kUnavailable, std::move(how)}; }

iovec range_of(Bytes bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

}  // namespace

void set_stream_options(int socket, const TransportLimits& limits) {
  const int on = 1, interval_s = 1, num_probes = 3;
  const int idle_s = static_cast<int>(std::max<int64_t>(1, limits.stall_timeout_ms / 1000));
  const auto timeout_ms = static_cast<unsigned>(limits.stall_timeout_ms);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &num_probes, sizeof num_probes);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

Status check_connected(int socket) {
  int reason = 0;
  socklen_t size = sizeof reason;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &reason, &size);
  if (reason != 0) return gone(std::string("connect: ") + strerror(reason));
  return Done{};
}

Status send_stream_greeting(int socket, Greeting greeting, Bytes owner_greeting, Bytes carrier) {
  greeting.owner_bytes = static_cast<uint32_t>(owner_greeting.size());
  greeting.carrier_bytes = static_cast<uint32_t>(carrier.size());
  iovec ranges[3] = {range_of(object_bytes(greeting)), range_of(owner_greeting), range_of(carrier)};
  msghdr message = {};
  message.msg_iov = ranges;
  message.msg_iovlen = 3;
  const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  const size_t size = sizeof greeting + owner_greeting.size() + carrier.size();
  if (sent != static_cast<ssize_t>(size)) return gone("the peer went before it was greeted");
  return Done{};
}

Result<size_t> receive_stream_greeting(int socket, MutableBytes input, size_t& end, bool is_accepting,
                                       const TransportLimits& limits) {
  const ssize_t got = recv(socket, input.data() + end, input.size() - end, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return size_t{0};
  if (got <= 0) return gone("the peer went before it greeted");
  end += static_cast<size_t>(got);
  if (end < sizeof(Greeting)) return size_t{0};
  const auto greeting = copy_from<Greeting>(input);
  TRY(check_greeting(greeting, limits));
  if (greeting.kind == GreetingKind::kRefusal && !is_accepting) return gone("the peer refused the connection");
  const GreetingKind expected = is_accepting ? GreetingKind::kHello : GreetingKind::kWelcome;
  const size_t size = sizeof greeting + size_t{greeting.owner_bytes} + greeting.carrier_bytes;
  if (greeting.kind != expected || greeting.carrier_bytes > kMaxCarrierBytes || size > input.size()) {
    return Error{ErrorCode::kCorrupt, "the peer's greeting is out of order"};
  }
  return end < size ? size_t{0} : size;
}

}  // namespace tandem::transport
