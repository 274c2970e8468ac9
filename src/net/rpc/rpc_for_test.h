#pragma once
// For tests of streams: one end's inbox with what has come out of it, and a pair of ends.

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "net/rpc/rpc_client.h"
#include "net/rpc/rpc_inbox.h"
#include "net/rpc/rpc_server.h"

namespace tandem::rpc {

// Long enough for any machine; what it bounds is a hang.
constexpr double kPatience_s = 600;

// For tests that are not about a time-out: none that a process which is stopped for a minute runs into. Pings are sent.
inline RpcOptions patient() {
  constexpr int kPatience_ms = static_cast<int>(kPatience_s * 1000);
  RpcOptions options;
  options.connect_timeout_ms = options.stall_timeout_ms = options.close_timeout_ms = kPatience_ms;
  options.keepalive_timeout_ms = kPatience_ms;
  return options;
}

// Reads an inbox into lists. One thread.
class Reader {
 public:
  RpcInbox inbox;
  std::vector<RpcEvent> opened, closed;
  std::vector<std::string> frames;  // of all streams, in the order of arrival
  std::vector<uint64_t> frame_ids;  // the connection of each

  // Reads on until there are so many of each; false when that does not come about.
  bool wait_for(size_t num_opened, size_t num_frames, size_t num_closed) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience_s);
    while (opened.size() < num_opened || frames.size() < num_frames || closed.size() < num_closed) {
      if (std::chrono::steady_clock::now() > end) return false;
      take(inbox.wait_drain(1.0));
    }
    return true;
  }

  void take(std::vector<RpcEvent> events) {
    for (RpcEvent& event : events) {
      const uint64_t id = event.stream->connection_id();
      for (const RpcEvent& before : closed) REQUIRE(before.stream->connection_id() != id);  // nothing after kClosed
      switch (event.kind) {
        case RpcEvent::Kind::kOpened:
          opened.push_back(std::move(event));
          break;
        case RpcEvent::Kind::kClosed:
          closed.push_back(std::move(event));
          break;
        case RpcEvent::Kind::kFrame:
          frames.push_back(std::move(event.frame));
          frame_ids.push_back(id);
          break;
      }
    }
  }

  // What ended the only stream.
  Error end() {
    REQUIRE(wait_for(0, 0, 1));
    return closed.front().reason;
  }
};

inline std::unique_ptr<RpcServer> open_server(const RpcOptions& options, Reader& reader) {
  auto server = RpcServer::listen("127.0.0.1", 0, options, reader.inbox);
  REQUIRE_MESSAGE(server, (server ? "" : server.error().message));
  return std::move(server).value();
}
inline std::unique_ptr<RpcClient> open_client(const RpcOptions& options, Reader& reader) {
  auto client = RpcClient::open(options, reader.inbox);
  REQUIRE_MESSAGE(client, (client ? "" : client.error().message));
  return std::move(client).value();
}

// A server and a client that has one stream to it.
struct Pair {
  // Readers first: they outlive both.
  Reader at_server, at_client;
  std::unique_ptr<RpcServer> server;
  std::unique_ptr<RpcClient> client;
  std::shared_ptr<RpcStream> stream;  // the client's end

  explicit Pair(const RpcOptions& server_options = patient(), const RpcOptions& client_options = patient(),
                bool is_opened = true) {
    server = open_server(server_options, at_server);
    client = open_client(client_options, at_client);
    stream = client->connect(address());
    if (!is_opened) return;
    // Either end of the waiting: a stream that did not open never will.
    while (at_client.opened.empty() && at_client.closed.empty()) at_client.take(at_client.inbox.wait_drain(1.0));
    REQUIRE_MESSAGE(!at_client.opened.empty(), at_client.closed[0].reason.message);
    REQUIRE(at_server.wait_for(1, 0, 0));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(server->port()); }
  RpcStream& server_end() { return *at_server.opened.front().stream; }
};

// Sends, waiting while the queue is full; false when the stream has closed.
inline bool send_patiently(RpcStream& stream, std::string_view frame) {
  for (;;) {
    switch (stream.send(frame)) {
      case SendResult::kQueued:
        return true;
      case SendResult::kFull:
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        break;
      default:
        return false;
    }
  }
}

}  // namespace tandem::rpc
