#include <doctest/doctest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "net/rpc/rpc_for_test.h"
#include "testing/raw_client.h"

using namespace tandem;
using namespace tandem::rpc;

namespace {

// A listening socket of this machine that the kernel answers and nobody else.
struct Listener {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  uint16_t port = 0;

  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(listen(socket, 8) == 0);
    getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~Listener() { close(socket); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

// Forwards one connection to a port of this machine until told to fall silent: both sockets stay open, and nothing
// passes any more. What a cut cable looks like from both ends.
class Relay {
 public:
  explicit Relay(uint16_t to) : thread_([this, to] { forward(to); }) {}
  ~Relay() {
    is_stopping_ = true;
    thread_.join();
  }
  std::string address() const { return listener_.address(); }
  void fall_silent() { is_silent_ = true; }

 private:
  void forward(uint16_t to) {
    const int near = accept(listener_.socket, nullptr, nullptr);
    const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(to);
    if (connect(far, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) is_stopping_ = true;
    pollfd ends[] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
    while (!is_stopping_) {
      if (is_silent_ || poll(ends, 2, 20) <= 0) {
        if (is_silent_) usleep(20'000);
        continue;
      }
      for (int i = 0; i < 2; ++i) {
        char buffer[4096];
        if ((ends[i].revents & (POLLIN | POLLHUP)) == 0) continue;
        const ssize_t got = read(ends[i].fd, buffer, sizeof buffer);
        if (got <= 0 || ::send(ends[1 - i].fd, buffer, static_cast<size_t>(got), MSG_NOSIGNAL) != got)
          is_stopping_ = true;
      }
    }
    close(near);
    close(far);
  }

  Listener listener_;
  std::atomic<bool> is_silent_{false}, is_stopping_{false};
  std::thread thread_;
};

constexpr char kPeerVariable[] = "TANDEM_RPC_TEST_PEER";

// This program once more, as a server that sends back what it gets.
class PeerProcess {
 public:
  PeerProcess() {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 3);
    std::string filter = "--test-case=the peer process", skips = "--no-skip";
    char name[] = "peer";
    char* const arguments[] = {name, filter.data(), skips.data(), nullptr};
    setenv(kPeerVariable, "1", 1);
    REQUIRE(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0);
    unsetenv(kPeerVariable);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    REQUIRE(read(ends[0], &port_, sizeof port_) == sizeof port_);
    close(ends[0]);
  }
  ~PeerProcess() { end(); }
  void signal(int number) { REQUIRE(kill(pid_, number) == 0); }
  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  pid_t pid_ = 0;
  uint16_t port_ = 0;
};

RpcOptions quick_keepalive() {
  RpcOptions options = patient();
  options.keepalive_time_ms = 200;
  options.keepalive_timeout_ms = 800;
  return options;
}

}  // namespace

TEST_CASE("the peer process" * doctest::skip()) {
  if (getenv(kPeerVariable) == nullptr) return;
  Reader reader;
  const auto server = open_server(patient(), reader);
  const uint16_t port = server->port();
  REQUIRE(write(3, &port, sizeof port) == sizeof port);
  for (size_t next = 0; getppid() != 1;) {
    reader.take(reader.inbox.wait_drain(1.0));
    for (; next < reader.frames.size(); ++next) send_patiently(*reader.opened.back().stream, reader.frames[next]);
  }
}

TEST_CASE("a peer process that is killed: its stream is lost, and a new connection is another one") {
  PeerProcess first;
  Reader reader;
  const auto client = open_client(patient(), reader);
  const auto stream = client->connect(first.address());
  for (int i = 0; i < 1000; ++i) REQUIRE(send_patiently(*stream, std::to_string(i)));
  REQUIRE(reader.wait_for(1, 1000, 0));
  first.end();
  const Error end = reader.end();
  CHECK(end.code == ErrorCode::kUnavailable);
  CHECK(end.message.find("stream to " + first.address() + ": ") == 0);
  CHECK(stream->send("late") == SendResult::kClosed);

  PeerProcess second;
  const auto again = client->connect(second.address());
  REQUIRE(again->send("hello") == SendResult::kQueued);
  REQUIRE(reader.wait_for(2, 1001, 1));
  CHECK(again->connection_id() > stream->connection_id());
  CHECK(reader.frame_ids.back() == again->connection_id());
  CHECK(reader.frames.back() == "hello");
}

TEST_CASE("a peer process that is stopped: sending never blocks, and nothing is lost when it goes on") {
  PeerProcess peer;
  Reader reader;
  RpcOptions options = patient();
  options.max_queued_frames = 500;
  const auto client = open_client(options, reader);
  const auto stream = client->connect(peer.address());
  REQUIRE(reader.wait_for(1, 0, 0));
  peer.signal(SIGSTOP);
  const std::string large(16 << 10, 'x');
  size_t num_sent = 0;
  for (int num_full = 0; num_full < 50;) {
    if (stream->send(large) == SendResult::kQueued) {
      ++num_sent;
      num_full = 0;
      continue;
    }
    ++num_full;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(num_sent >= 500);
  peer.signal(SIGCONT);
  REQUIRE(reader.wait_for(1, num_sent, 0));
}

TEST_CASE("a peer process that is stopped for longer than the keepalive allows is lost") {
  PeerProcess peer;
  Reader reader;
  const auto client = open_client(quick_keepalive(), reader);
  const auto stream = client->connect(peer.address());
  REQUIRE(reader.wait_for(1, 0, 0));
  peer.signal(SIGSTOP);
  CHECK(reader.end().code == ErrorCode::kUnavailable);
}

TEST_CASE("an idle connection is kept, however often each end asks") {
  RpcOptions options = patient();
  options.keepalive_time_ms = 20;
  Pair pair(options, options);
  // Many times as long.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  REQUIRE(pair.stream->send("still here") == SendResult::kQueued);
  REQUIRE(pair.at_server.wait_for(1, 1, 0));
}

TEST_CASE("a connection through which nothing passes any more is lost at both ends") {
  Reader at_server, at_client;
  const auto server = open_server(quick_keepalive(), at_server);
  Relay relay(server->port());
  const auto client = open_client(quick_keepalive(), at_client);
  const auto stream = client->connect(relay.address());
  REQUIRE(stream->send("before") == SendResult::kQueued);
  REQUIRE(at_server.wait_for(1, 1, 0));
  REQUIRE(at_client.wait_for(1, 0, 0));
  relay.fall_silent();
  CHECK(at_client.end().code == ErrorCode::kUnavailable);
  CHECK(at_server.end().code == ErrorCode::kUnavailable);
}

TEST_CASE("nobody listens: closed, with the reason, and not tried again") {
  Reader reader;
  const auto client = open_client(patient(), reader);
  const auto stream = client->connect("127.0.0.1:1");
  const Error end = reader.end();
  CHECK(end.code == ErrorCode::kNotFound);
  CHECK(end.message.find("connect to 127.0.0.1:1 without TLS: ") == 0);
  CHECK(end.message.find("refused") != std::string::npos);
  CHECK(reader.opened.empty());
}

TEST_CASE("a name that does not exist") {
  Reader reader;
  const auto client = open_client({}, reader);
  const auto stream = client->connect("no-such-host.invalid:80");
  const Error end = reader.end();
  CHECK((end.code == ErrorCode::kUnavailable || end.code == ErrorCode::kDeadline));
  CHECK(end.message.size() > 10);
}

TEST_CASE("a listener that never answers: closed when the deadline is over") {
  Listener listener;
  Reader reader;
  RpcOptions options = patient();
  options.connect_timeout_ms = 200;
  const auto client = open_client(options, reader);
  const auto stream = client->connect(listener.address());
  CHECK(reader.end().code == ErrorCode::kDeadline);
  CHECK(reader.end().message == "not open within 200 ms");
}

TEST_CASE("close and abort before a stream is open") {
  Listener listener;
  Reader reader;
  const auto client = open_client(patient(), reader);
  client->connect(listener.address())->close();
  client->connect(listener.address())->abort();
  REQUIRE(reader.wait_for(0, 0, 2));
  CHECK(reader.closed[0].reason.code == ErrorCode::kCancelled);
  CHECK(reader.closed[1].reason.code == ErrorCode::kCancelled);
}

TEST_CASE("bytes that are no stream do the server no harm") {
  Pair pair;
  {
    testing::RawClient stranger(pair.server->port());
    stranger.send("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    testing::RawClient another(pair.server->port());
    another.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(300, '\xff'));
    CHECK(another.is_closed_by_peer());
  }
  REQUIRE(pair.stream->send("still here") == SendResult::kQueued);
  REQUIRE(pair.at_server.wait_for(1, 1, 0));
  CHECK(pair.at_server.opened.size() == 1);
}

TEST_CASE("a server with no room for another stream says so, and takes one when another has gone") {
  RpcOptions options = patient();
  options.max_streams = 1;
  Pair pair(options);
  const auto second = pair.client->connect(pair.address());
  REQUIRE(pair.at_client.wait_for(1, 0, 1));
  CHECK(pair.at_client.closed[0].stream == second);
  CHECK(pair.at_client.closed[0].reason.code == ErrorCode::kExhausted);
  pair.stream->close();
  REQUIRE(pair.at_server.wait_for(1, 0, 1));  // without the one refused
  const auto third = pair.client->connect(pair.address());
  REQUIRE(pair.at_client.wait_for(2, 0, 2));
  CHECK(pair.at_client.opened[1].stream == third);
  third->close();
  REQUIRE(pair.at_server.wait_for(2, 0, 2));
  CHECK(pair.at_server.closed.size() == 2);  // those that had room
}

TEST_CASE("a server that goes away closes all its streams first; what is held of them stays usable") {
  Pair pair;
  const auto second = pair.client->connect(pair.address());
  REQUIRE(pair.at_server.wait_for(2, 0, 0));
  REQUIRE(pair.at_client.wait_for(2, 0, 0));
  const std::shared_ptr<RpcStream> held = pair.at_server.opened[0].stream;
  REQUIRE(second->send("unread") == SendResult::kQueued);
  pair.server.reset();
  pair.at_server.take(pair.at_server.inbox.drain());
  REQUIRE(pair.at_server.closed.size() == 2);
  CHECK(pair.at_server.closed[0].reason.message == "aborted here");
  CHECK(held->send("late") == SendResult::kClosed);
  held->close();
  REQUIRE(pair.at_client.wait_for(2, 0, 2));
}

TEST_CASE("servers come and go while clients connect") {
  Reader at_client;
  const auto client = open_client(patient(), at_client);
  for (size_t i = 1; i <= 30; ++i) {
    Reader at_server;
    auto server = open_server(patient(), at_server);
    const auto stream = client->connect("127.0.0.1:" + std::to_string(server->port()));
    if (i % 3 == 0) REQUIRE(at_server.wait_for(1, 0, 0));
    server.reset();
    REQUIRE(at_client.wait_for(0, 0, i));
    at_server.take(at_server.inbox.drain());
    CHECK(at_server.closed.size() >= at_server.opened.size());
  }
}

TEST_CASE("a port that is taken is an error") {
  Pair pair;
  Reader reader;
  const auto second = RpcServer::listen("127.0.0.1", pair.server->port(), {}, reader.inbox);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kUnavailable);
  CHECK(second.error().message == "cannot listen on " + pair.address());
}
