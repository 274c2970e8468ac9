#include "net/transport/shm_transport.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "net/transport/ring_connection.h"
#include "net/transport/socket_listener.h"

namespace tandem::transport {
namespace {

Error unavailable(const std::string& path, const char* what) {
  return {ErrorCode::kUnavailable, path + ": " + what + ": " + strerror(errno)};
}

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kInvalidArgument,
                 "a socket's path has 1 to " + std::to_string(sizeof address.sun_path - 1) + " bytes: " + path};
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

OwnedFd unix_socket() { return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// 0, or the errno.
int connect_to(const OwnedFd& socket, const sockaddr_un& address) {
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

class ShmTransport final : public Transport {
 public:
  ShmTransport(EventLoop& loop, const TransportLimits& limits) : loop_(loop), limits_(limits) {}
  Result<std::unique_ptr<Listener>> listen(const std::string& place, Acceptor& acceptor) override;
  Result<std::unique_ptr<Connection>> connect(const std::string& place, Bytes greeting,
                                              ConnectionHandler& handler) override;

 private:
  EventLoop& loop_;
  const TransportLimits limits_;
};

Result<std::unique_ptr<Listener>> ShmTransport::listen(const std::string& place, Acceptor& acceptor) {
  TRY_ASSIGN(const sockaddr_un address, unix_address(place));
  const int reason = connect_to(unix_socket(), address);
  if (reason == 0) return Error{ErrorCode::kUnavailable, place + ": somebody listens there"};
  if (reason == ECONNREFUSED) unlink(place.c_str());
  OwnedFd socket = unix_socket();
  if (!socket) return unavailable(place, "socket");
  // Nobody can connect before listen(), so the mode is set in time.
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(place.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(socket.get(), 128) != 0) {
    return unavailable(place, "listen");
  }
  return SocketListener::start(loop_, limits_, acceptor, {std::move(socket), "shm:" + place, place},
                               RingConnection::accept);
}

Result<std::unique_ptr<Connection>> ShmTransport::connect(const std::string& place, Bytes greeting,
                                                          ConnectionHandler& handler) {
  TRY_ASSIGN(const sockaddr_un address, unix_address(place));
  OwnedFd socket = unix_socket();
  if (!socket) return unavailable(place, "socket");
  if (const int reason = connect_to(socket, address); reason != 0) {
    return Error{ErrorCode::kUnavailable, place + ": connect: " + strerror(reason)};
  }
  return RingConnection::connect(loop_, limits_, std::move(socket), greeting, handler);
}

}  // namespace

std::unique_ptr<Transport> make_shm_transport(EventLoop& loop, const TransportLimits& limits) {
  return std::make_unique<ShmTransport>(loop, limits);
}

}  // namespace tandem::transport
