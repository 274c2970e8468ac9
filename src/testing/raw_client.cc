#include "testing/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace tandem::testing {
namespace {

constexpr int kPatienceMs = 10'000;  // a hung server fails the test instead of stopping it
constexpr int kNumSlices = 100;

}  // namespace

RawClient::RawClient(uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TANDEM_CHECK(socket_ >= 0);
  const int one = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  is_at_end_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0;
}

RawClient::RawClient(RawClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), unread_(std::move(other.unread_)), is_at_end_(other.is_at_end_) {}

RawClient::~RawClient() { close(); }

void RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

bool RawClient::read_some() {
  if (is_at_end_) return false;
  pollfd waited{socket_, POLLIN, 0};
  // In slices: a process that is stopped for longer than the deadline loses one of them, not all.
  int num_slices = 0;
  while (poll(&waited, 1, kPatienceMs / kNumSlices) <= 0) {
    if (++num_slices == kNumSlices) return false;
  }
  char buffer[16384];
  const ssize_t size = recv(socket_, buffer, sizeof(buffer), 0);
  if (size <= 0)
    is_at_end_ = true;
  else
    unread_.append(buffer, static_cast<size_t>(size));
  return size > 0;
}

std::string RawClient::read_until(std::string_view text) {
  size_t at = std::string::npos;
  do {
    at = text.empty() ? std::string::npos : unread_.find(text);
  } while (at == std::string::npos && read_some());
  if (at == std::string::npos) return std::exchange(unread_, {});
  std::string out = unread_.substr(0, at + text.size());
  unread_.erase(0, at + text.size());
  return out;
}

std::string RawClient::read_bytes(size_t count) {
  while (unread_.size() < count && read_some()) {
  }
  std::string out = unread_.substr(0, count);
  unread_.erase(0, count);
  return out;
}

std::string RawClient::read_once() {
  if (unread_.empty()) read_some();
  return std::exchange(unread_, {});
}

bool RawClient::is_closed_by_peer() {
  while (read_some()) {
  }
  return is_at_end_;
}

void RawClient::set_receive_buffer(int size_bytes) {
  setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &size_bytes, sizeof(size_bytes));
}

void RawClient::finish_sending() { shutdown(socket_, SHUT_WR); }

void RawClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  is_at_end_ = true;
}

void RawClient::reset() {
  const linger at_once{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close();
}

std::string RawAnswer::header(std::string_view name) const {
  for (size_t at = head.find("\r\n"); at != std::string::npos && at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, end - at - 2);
    const size_t colon = line.find(": ");
    if (colon == name.size() && strncasecmp(line.data(), name.data(), colon) == 0) return line.substr(colon + 2);
    at = end;
  }
  return {};
}

RawAnswer read_answer(RawClient& client, bool is_head) {
  RawAnswer answer;
  answer.head = client.read_until("\r\n\r\n");
  if (answer.head.size() < 12) return answer;
  answer.status = std::atoi(answer.head.c_str() + 9);
  if (is_head || answer.status == 204 || answer.status == 100) return answer;
  const std::string length = answer.header("Content-Length");
  if (!length.empty()) {
    answer.body = client.read_bytes(std::strtoul(length.c_str(), nullptr, 10));
  } else if (answer.header("Transfer-Encoding") == "chunked") {
    while (true) {
      const std::string line = client.read_until("\r\n");
      const size_t size = std::strtoul(line.c_str(), nullptr, 16);
      answer.body += client.read_bytes(size);
      if (client.read_bytes(2) != "\r\n" || size == 0) break;
    }
  } else {
    answer.body = client.read_all();
  }
  return answer;
}

RawAnswer fetch(uint16_t port, std::string_view method, std::string_view target, std::string_view body,
                std::string_view more_headers) {
  RawClient client(port);
  std::string request = std::string(method) + " " + std::string(target) + " HTTP/1.1\r\nHost: x\r\n";
  request += "Connection: close\r\n";
  request += more_headers;
  if (!body.empty()) {
    request += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  client.send(request + "\r\n" + std::string(body));
  return read_answer(client, method == "HEAD");
}

}  // namespace tandem::testing
