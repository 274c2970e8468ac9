#include "net/transport/socket_listener.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tandem::transport {
namespace {

// Without files to spare the socket stays readable: watching it would be busy polling.
constexpr int64_t kRestNs = 100'000'000;

}  // namespace

Result<std::unique_ptr<Listener>> SocketListener::start(EventLoop& loop, const TransportLimits& limits,
                                                        Acceptor& acceptor, Place place, Accept accept) {
  std::unique_ptr<SocketListener> made(new SocketListener(loop, limits, acceptor, std::move(place), std::move(accept)));
  TRY(loop.watch(made->place_.socket.get(), EPOLLIN, *made));
  return std::unique_ptr<Listener>(std::move(made));
}

SocketListener::~SocketListener() {
  loop_.unwatch(place_.socket.get());
  loop_.forget(*this);
  if (!place_.path.empty()) unlink(place_.path.c_str());
}

void SocketListener::on_io(uint32_t) {
  OwnedFd accepted(accept4(place_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted) return accept_(loop_, limits_, std::move(accepted), lobby_);
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    loop_.unwatch(place_.socket.get());
    loop_.set_timer(*this, loop_.now_ns() + kRestNs);
  }
}

void SocketListener::on_timer() {
  if (!loop_.watch(place_.socket.get(), EPOLLIN, *this)) loop_.set_timer(*this, loop_.now_ns() + kRestNs);
}

}  // namespace tandem::transport
