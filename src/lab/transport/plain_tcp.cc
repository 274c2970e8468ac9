#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "lab/transport/timed_path.h"

namespace tandem::transport_lab {
namespace {

constexpr uint64_t kPingBytes = kHeaderBytes + 24;  // as much as a frame of only a header

struct Order {                       // what the sender is about to do
  uint64_t frame_bytes, num_frames;  // 0 bytes: pings, answered one by one
};

bool receive_all(int socket, void* target, size_t size) {
  return recv(socket, target, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

bool send_all(int socket, const void* source, size_t size) {
  const char* at = static_cast<const char*>(source);
  while (size > 0) {
    const ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

void serve(int socket) {
  std::vector<char> pool(kPoolBytes);
  Order order;
  while (receive_all(socket, &order, sizeof order)) {
    for (uint64_t i = 0; i < order.num_frames; ++i) {
      const bool is_ping = order.frame_bytes == 0;
      const uint64_t size = is_ping ? kPingBytes : order.frame_bytes;
      if (!receive_all(socket, pool.data() + (is_ping ? 0 : pool_offset(i, size)), size)) return;
      if (is_ping && !send_all(socket, pool.data(), size)) return;
    }
    if (order.frame_bytes > 0 && !send_all(socket, &order, 1)) return;
  }
}

class PlainTcp final : public TimedPath {
 public:
  PlainTcp(int socket, int peer) : socket_(socket), peer_(peer), pool_(kPoolBytes, 'p'), server_(serve, peer) {}
  ~PlainTcp() override {
    shutdown(socket_, SHUT_RDWR);
    server_.join();
    close(socket_);
    close(peer_);
  }

  Result<std::vector<double>> round_trips(uint32_t count) override {
    const Order order = {0, count};
    std::vector<double> seconds;
    bool is_good = send_all(socket_, &order, sizeof order);
    for (uint32_t i = 0; i < count && is_good; ++i) {
      const double begin = now_s();
      is_good = send_all(socket_, pool_.data(), kPingBytes) && receive_all(socket_, pool_.data(), kPingBytes);
      seconds.push_back(now_s() - begin);
    }
    if (!is_good) return broken();
    return seconds;
  }

  Result<double> move(uint64_t frame_bytes, uint64_t num_frames) override {
    const Order order = {frame_bytes, num_frames};
    const double begin = now_s();
    bool is_good = send_all(socket_, &order, sizeof order);
    for (uint64_t i = 0; i < num_frames && is_good; ++i) {
      is_good = send_all(socket_, pool_.data() + pool_offset(i, frame_bytes), frame_bytes);
    }
    char answer;
    if (!is_good || !receive_all(socket_, &answer, 1)) return broken();
    return now_s() - begin;
  }

 private:
  static Error broken() { return {ErrorCode::kUnavailable, "the plain TCP connection broke"}; }
  const int socket_, peer_;
  std::vector<char> pool_;
  std::thread server_;
};

}  // namespace

Result<std::unique_ptr<TimedPath>> open_plain_tcp() {
  const Error error = {ErrorCode::kUnavailable, "no TCP connection on 127.0.0.1"};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int connecting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is_good = bind(listening, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listening, 1) == 0 &&
                       getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                       connect(connecting, reinterpret_cast<sockaddr*>(&address), size) == 0;
  const int accepted = is_good ? accept4(listening, nullptr, nullptr, SOCK_CLOEXEC) : -1;
  close(listening);
  if (accepted < 0) {
    close(connecting);
    return error;
  }
  const int on = 1;
  for (const int fd : {connecting, accepted}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return std::unique_ptr<TimedPath>(std::make_unique<PlainTcp>(connecting, accepted));
}

}  // namespace tandem::transport_lab
