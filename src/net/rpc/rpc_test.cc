#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "net/rpc/rpc_for_test.h"
#include "net/rpc/stream_core.h"

using namespace tandem;
using namespace tandem::rpc;

namespace {

#if defined(__has_feature)
constexpr uint64_t kManyFrames = 20'000;  // clang: the sanitizers' builds
#else
constexpr uint64_t kManyFrames = 100'000;
#endif

std::string numbered(uint64_t number, size_t size = sizeof(uint64_t)) {
  std::string frame(std::max(size, sizeof number), 'x');
  std::memcpy(frame.data(), &number, sizeof number);
  return frame;
}

// The first frame that is not in order; the number of frames when all are.
size_t first_out_of_order(const std::vector<std::string>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    uint64_t number = 0;
    std::memcpy(&number, frames[i].data(), sizeof number);
    if (number != i) return i;
  }
  return frames.size();
}

RpcOptions speaking(uint32_t lowest, uint32_t highest) {
  RpcOptions options = patient();
  options.versions = {lowest, highest};
  return options;
}

}  // namespace

TEST_CASE("frames of any bytes and size go both ways") {
  Pair pair;
  const std::string zeros(3, '\0'), large(5u << 20, '\x80');
  for (const std::string& frame : {std::string("a"), std::string(), zeros, large}) {
    CHECK(pair.stream->send(frame) == SendResult::kQueued);
    CHECK(pair.server_end().send(frame) == SendResult::kQueued);
  }
  REQUIRE(pair.at_server.wait_for(1, 4, 0));
  REQUIRE(pair.at_client.wait_for(1, 4, 0));
  CHECK(pair.at_server.frames == std::vector<std::string>{"a", "", zeros, large});
  CHECK(pair.at_client.frames == pair.at_server.frames);
  CHECK(pair.at_client.opened[0].stream == pair.stream);
  CHECK(pair.stream->version() == 1);
  CHECK(pair.stream->peer() == pair.address());
  CHECK(pair.server_end().peer().find("127.0.0.1") != std::string::npos);
}

TEST_CASE("what is sent before a stream is open goes out first when it is") {
  Pair pair(patient(), patient(), false);
  CHECK(pair.stream->send("early") == SendResult::kQueued);
  REQUIRE(pair.at_server.wait_for(1, 1, 0));
  CHECK(pair.at_server.frames[0] == "early");
}

TEST_CASE("a hundred thousand frames each way at once, in order, by threads that meet back-pressure") {
  constexpr uint64_t kNumFrames = kManyFrames;
  RpcOptions options = patient();
  options.max_queued_frames = 64;
  options.max_unread_bytes = 16 << 10;
  Pair pair(options, options);
  const auto send_all = [](RpcStream& stream) {
    for (uint64_t number = 0; number < kNumFrames; ++number) {
      if (!send_patiently(stream, numbered(number, number % 300))) return;
    }
  };
  std::thread client_sender(send_all, std::ref(*pair.stream)), server_sender(send_all, std::ref(pair.server_end()));
  std::thread client_reader([&] { pair.at_client.wait_for(1, kNumFrames, 0); });
  CHECK(pair.at_server.wait_for(1, kNumFrames, 0));
  client_reader.join();
  client_sender.join();
  server_sender.join();
  CHECK(pair.at_server.frames.size() == kNumFrames);
  CHECK(pair.at_client.frames.size() == kNumFrames);
  CHECK(first_out_of_order(pair.at_server.frames) == kNumFrames);
  CHECK(first_out_of_order(pair.at_client.frames) == kNumFrames);
}

TEST_CASE("many streams of one client share its thread, each in order, each with an id of its own") {
  constexpr size_t kNumStreams = 40;
  constexpr uint64_t kNumFrames = 300;
  Pair pair;
  std::vector<std::shared_ptr<RpcStream>> streams{pair.stream};
  while (streams.size() < kNumStreams) streams.push_back(pair.client->connect(pair.address()));
  for (uint64_t number = 0; number < kNumFrames; ++number) {
    for (const auto& stream : streams) CHECK(send_patiently(*stream, numbered(number)));
  }
  REQUIRE(pair.at_server.wait_for(kNumStreams, kNumStreams * kNumFrames, 0));
  std::set<uint64_t> ids;
  for (const RpcEvent& opened : pair.at_server.opened) {
    const uint64_t id = opened.stream->connection_id();
    ids.insert(id);
    std::vector<std::string> frames;
    for (size_t i = 0; i < pair.at_server.frames.size(); ++i) {
      if (pair.at_server.frame_ids[i] == id) frames.push_back(pair.at_server.frames[i]);
    }
    CHECK(frames.size() == kNumFrames);
    CHECK(first_out_of_order(frames) == kNumFrames);
  }
  for (const auto& stream : streams) ids.insert(stream->connection_id());
  CHECK(ids.size() == 2 * kNumStreams);
}

TEST_CASE("a reader that does not read stops the sender within the limits, and loses nothing") {
  RpcOptions options = patient();
  options.max_queued_bytes = 1 << 20;
  options.max_unread_bytes = 1 << 20;
  Pair pair(options, options);
  constexpr size_t kSize = 32 << 10;
  uint64_t num_sent = 0;
  // Full for good once a second passes without room for one more.
  for (int num_waits = 0; num_waits < 100;) {
    const SendResult result = pair.stream->send(numbered(num_sent, kSize));
    REQUIRE(result != SendResult::kClosed);
    if (result == SendResult::kQueued) {
      ++num_sent;
      num_waits = 0;
      REQUIRE(num_sent * kSize < 64u << 20);  // the queue, the inbox, and what the connection holds
    } else {
      CHECK(result == SendResult::kFull);
      ++num_waits;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  CHECK(pair.stream->queued_bytes() <= options.max_queued_bytes);
  REQUIRE(pair.at_server.wait_for(1, num_sent, 0));
  CHECK(first_out_of_order(pair.at_server.frames) == num_sent);
  CHECK(send_patiently(*pair.stream, numbered(num_sent, kSize)));
  REQUIRE(pair.at_server.wait_for(1, num_sent + 1, 0));
}

TEST_CASE("a peer that takes no bytes ends the stream when the stall deadline is over") {
  RpcOptions options = patient();
  options.max_unread_bytes = 1 << 10;
  options.stall_timeout_ms = 300;
  Pair pair({options}, options);
  while (pair.stream->send(std::string(64 << 10, 'x')) != SendResult::kClosed) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Error end = pair.at_client.end();
  CHECK(end.code == ErrorCode::kDeadline);
  CHECK(end.message == "the peer took no bytes within 300 ms");
}

TEST_CASE("a frame beyond the limit is refused by the sender, and by the receiver if the sender does not know better") {
  RpcOptions small = patient();
  const RpcOptions large = patient();
  small.max_frame_bytes = 1000;
  Pair pair(large, small);
  CHECK(pair.stream->send(std::string(1001, 'x')) == SendResult::kTooLarge);
  CHECK(pair.stream->send(std::string(1000, 'x')) == SendResult::kQueued);
  REQUIRE(pair.at_server.wait_for(1, 1, 0));
  CHECK(pair.server_end().send(std::string(1001, 'x')) == SendResult::kQueued);
  const Error end = pair.at_client.end();
  CHECK(end.code == ErrorCode::kExhausted);
  CHECK(end.message.find("larger than max (1001 vs. 1000)") != std::string::npos);
  REQUIRE(pair.at_server.wait_for(1, 1, 1));
}

TEST_CASE("close sends what is queued, and both ends learn of it") {
  for (const bool is_by_client : {true, false}) {
    CAPTURE(is_by_client);
    RpcOptions options = patient();
      Pair pair(options, options);
    RpcStream& closing = is_by_client ? *pair.stream : pair.server_end();
    Reader& other = is_by_client ? pair.at_server : pair.at_client;
    Reader& own = is_by_client ? pair.at_client : pair.at_server;
    for (uint64_t number = 0; number < 1000; ++number) CHECK(send_patiently(closing, numbered(number, 500)));
    closing.close();
    CHECK(closing.send("late") == SendResult::kClosed);
    REQUIRE(other.wait_for(1, 1000, 1));
    CHECK(first_out_of_order(other.frames) == 1000);
    CHECK(other.end().code == ErrorCode::kCancelled);
    CHECK(other.end().message == "the peer closed the stream");
    CHECK(own.end().code == ErrorCode::kCancelled);
    CHECK(own.end().message == "closed here");
  }
}

TEST_CASE("close of one end while the other floods ends both") {
  RpcOptions options = patient();
  Pair pair(options, options);
  std::thread flood([&] {
    while (send_patiently(pair.server_end(), std::string(1000, 'x'))) {
    }
  });
  REQUIRE(pair.at_client.wait_for(1, 100, 0));
  pair.stream->close();
  flood.join();
  // In these words: a close that ran into its time-out is kCancelled too.
  CHECK(pair.at_client.end().message == "closed here");
  CHECK(pair.at_server.end().message == "the peer closed the stream");
}

TEST_CASE("abort ends both at once; the other end cannot tell it from a loss") {
  Pair pair;
  pair.stream->abort();
  pair.stream->abort();
  CHECK(pair.stream->send("late") == SendResult::kClosed);
  CHECK(pair.at_client.end().message == "aborted here");
  CHECK(pair.at_server.end().code == ErrorCode::kUnavailable);
}

TEST_CASE("a version speaks with the one before it, by the highest that both have") {
  Pair newer(speaking(1, 2), speaking(2, 3));
  CHECK(newer.stream->version() == 2);
  CHECK(newer.server_end().version() == 2);
  Pair same(speaking(2, 3), speaking(2, 3));
  CHECK(same.stream->version() == 3);
}

TEST_CASE("no common version: both ends say which versions each speaks") {
  Pair pair(speaking(3, 4), speaking(1, 2), false);
  const Error at_client = pair.at_client.end();
  CHECK(at_client.code == ErrorCode::kInvalidArgument);
  CHECK(at_client.message ==
        "connect to " + pair.address() + ": no common protocol version: this side speaks 1-2, the peer 3-4");
  const Error at_server = pair.at_server.end();
  CHECK(at_server.code == ErrorCode::kInvalidArgument);
  CHECK(at_server.message == "refused: no common protocol version: this side speaks 3-4, the peer 1-2");
  CHECK(pair.at_client.opened.empty());
  CHECK(pair.at_server.opened.empty());
}

TEST_CASE("what is said of versions is checked") {
  CHECK(*agree_on_version({2, 3}, "1-2") == 2);
  CHECK(*agree_on_version({1, 1}, "1-9") == 1);
  for (const char* text : {"", "1", "1-", "-2", "2-1", "0-1", "1-2x", "1-99999999999", "a-b"}) {
    CAPTURE(text);
    CHECK(agree_on_version({1, 2}, text).error().message == "the peer does not say which protocol versions it speaks");
  }
}

TEST_CASE("the inbox calls its hook when it stops being empty, so that its reader may wait elsewhere") {
  std::atomic<int> num_calls{0};
  RpcInbox inbox([&] { ++num_calls; });
  auto client = RpcClient::open({}, inbox);
  REQUIRE(client);
  const auto stream = client.value()->connect("127.0.0.1:1");
  while (num_calls == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::vector<RpcEvent> events = inbox.drain();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == RpcEvent::Kind::kClosed);
  CHECK(num_calls == 1);
  inbox.wake();
  CHECK(inbox.wait_drain(kPatience_s).empty());
}
