#pragma once
// What the tests of all transports share: an end that records what it is told, and a rig of both ends on one loop.

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/transport/network.h"
#include "net/transport/owned_fd.h"

namespace tandem::transport {

inline const std::vector<std::string> kSchemes = {"loop", "shm", "tcp", "ucx"};

// Bytes that depend on the seed and the position, so that a byte out of place shows.
inline std::string pattern(size_t size, uint64_t seed) {
  std::string bytes(size, '\0');
  uint64_t state = seed * 0x9e37'79b9'7f4a'7c15 + 1;
  for (char& byte : bytes) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return bytes;
}

struct RecordedFrame {
  std::string header, payload;
};

class RecordingEnd : public ConnectionHandler {
 public:
  // Tests set these; each has a default.
  std::function<Placement(Connection&, std::string_view header, uint64_t)> choose_placement;
  std::function<void(Connection&, std::string_view header)> frame_hook;
  std::function<void(Connection&, uint64_t tag)> sent_hook;

  std::vector<RecordedFrame> frames;
  std::vector<uint64_t> sent;
  int num_opened = 0, num_writable = 0, num_headers = 0;
  std::vector<Error> closed;

  void on_open(Connection&) override { ++num_opened; }
  Placement on_header(Connection& connection, Bytes header, uint64_t payload_bytes) override {
    ++num_headers;
    return choose_placement ? choose_placement(connection, text_of(header), payload_bytes) : Placement::hold();
  }
  void on_frame(Connection& connection, Bytes header, Bytes payload) override {
    frames.push_back({std::string(text_of(header)), std::string(text_of(payload))});
    if (frame_hook) frame_hook(connection, text_of(header));
  }
  void on_sent(Connection& connection, uint64_t tag) override {
    sent.push_back(tag);
    if (sent_hook) sent_hook(connection, tag);
  }
  void on_writable(Connection&) override { ++num_writable; }
  void on_close(Connection&, const Error& reason) override { closed.push_back(reason); }
};

class RecordingAcceptor : public Acceptor {
 public:
  std::vector<std::string> greetings;
  std::vector<std::unique_ptr<RecordingEnd>> ends;  // one per admitted connection
  std::vector<std::unique_ptr<Connection>> connections;
  std::function<bool(std::string_view greeting)> is_welcome;
  std::function<void(RecordingEnd&)> prepare;

  ConnectionHandler* admit(Bytes greeting) override {
    greetings.emplace_back(text_of(greeting));
    if (is_welcome && !is_welcome(greetings.back())) return nullptr;
    ends.push_back(std::make_unique<RecordingEnd>());
    if (prepare) prepare(*ends.back());
    return ends.back().get();
  }
  void accepted(std::unique_ptr<Connection> connection) override { connections.push_back(std::move(connection)); }
};

// A folder that is removed with its sockets.
struct SocketFolder {
  SocketFolder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~SocketFolder() { rmdir(path.c_str()); }
  std::string path = "/tmp/tandem-transport-XXXXXX";
};

inline std::string address_of(const std::string& scheme, const SocketFolder& folder) {
  if (scheme == "loop") return "loop:node";
  return scheme == "shm" ? "shm:" + folder.path + "/node.sock" : scheme + ":127.0.0.1:0";
}

// Runs the loop until `is_true`; gives up after half a minute, which only a fault makes it wait for. A round counts for
// at most a fifth of a second, so that a stop of the whole process does not count.
inline bool run_until(EventLoop& loop, const std::function<bool()>& is_true) {
  using Clock = std::chrono::steady_clock;
  Clock::duration waited{0};
  while (!is_true()) {
    if (waited > std::chrono::seconds(30)) return false;
    const auto before = Clock::now();
    loop.run_once(100);
    waited += std::min<Clock::duration>(Clock::now() - before, std::chrono::milliseconds(200));
  }
  return true;
}

// Both ends on one loop and one thread.
struct Rig {
  explicit Rig(const std::string& scheme, TransportLimits own_limits = {}, const Clock* own_clock = nullptr)
      : limits(patient(own_limits, own_clock)),
        loop(std::move(EventLoop::create(own_clock != nullptr ? *own_clock : clock)).value()),
        network(*loop, limits, &hub) {
    auto made = network.listen(address_of(scheme, folder), acceptor);
    REQUIRE(made);
    listener = std::move(made).value();
  }

  // With the system's clock time-outs only end what a fault would let hang.
  static TransportLimits patient(TransportLimits limits, const Clock* own_clock) {
    if (own_clock == nullptr) limits.connect_timeout_ms = limits.stall_timeout_ms = 60'000;
    return limits;
  }

  std::unique_ptr<Connection> connect(RecordingEnd& end, std::string_view greeting = "hello") {
    auto made = network.connect(listener->address(), bytes_of(greeting), end);
    REQUIRE(made);
    return std::move(made).value();
  }
  // Connects and waits until both sides are open.
  std::unique_ptr<Connection> open(RecordingEnd& end) {
    const size_t before = acceptor.connections.size();
    auto connection = connect(end);
    REQUIRE(run([&] { return connection->is_open() && acceptor.connections.size() == before + 1; }));
    return connection;
  }
  bool run(const std::function<bool()>& is_true) { return run_until(*loop, is_true); }
  void settle() {
    for (int i = 0; i < 20; ++i) loop->run_once(0);
  }

  SystemClock clock;
  SocketFolder folder;
  TransportLimits limits;
  LoopbackHub hub;
  std::unique_ptr<EventLoop> loop;
  Network network;
  RecordingAcceptor acceptor;
  std::unique_ptr<Listener> listener;
};

inline Frame frame_of(std::string_view header, std::string_view payload, uint64_t tag = 0) {
  return {.header = bytes_of(header), .payload = {bytes_of(payload)}, .tag = tag};
}

}  // namespace tandem::transport
