// Frames as bytes: what a stranger may write, and how they leave the queue.

#include <algorithm>
#include <cstring>
#include <optional>

#include "net/transport/frame_reader.h"
#include "net/transport/send_queue.h"
#include "net/transport/transport_for_test.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

struct Sink final : FrameSink {
  Placement on_header(Bytes header, uint64_t payload_bytes) override {
    ++num_headers;
    last_header = text_of(header);
    if (placement) return placement(payload_bytes);
    return Placement::hold();
  }
  void on_frame(Bytes header, Bytes payload) override {
    frames.push_back({std::string(text_of(header)), std::string(text_of(payload))});
    is_view = payload.data() >= fed.data() && payload.data() < fed.data() + fed.size();
  }
  bool is_closed() const override { return is_shut; }

  std::function<Placement(uint64_t)> placement;
  std::vector<RecordedFrame> frames;
  std::string last_header;
  int num_headers = 0;
  bool is_shut = false, is_view = false;
  Bytes fed;
};

std::string wire(const FramePrefix& prefix, std::string_view rest) {
  return std::string(text_of(object_bytes(prefix))) + std::string(rest);
}

std::string frame_bytes(std::string_view header, std::string_view payload, uint64_t sequence = 0) {
  return wire(
      {.header_bytes = static_cast<uint32_t>(header.size()), .payload_bytes = payload.size(), .sequence = sequence},
      std::string(header) + std::string(payload));
}

// Feeds as much as is taken. The error's code, if there is one.
std::optional<ErrorCode> feed_all(FrameReader& reader, Sink& sink, std::string_view bytes) {
  while (true) {
    sink.fed = bytes_of(bytes);
    auto used = reader.feed(bytes_of(bytes), sink);
    if (!used) return used.error().code;
    if (*used == 0) return std::nullopt;
    bytes.remove_prefix(*used);
  }
}

}  // namespace

TEST_CASE("a frame cut at any place is the same frame") {
  const TransportLimits limits;
  const std::string bytes = frame_bytes("head", "payload") + frame_bytes("", "", 1) + frame_bytes("h", "", 2);
  for (const bool is_into : {false, true}) {
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      CAPTURE(cut);
      FrameReader reader(limits, 0);
      Sink sink;
      char target[16] = {};
      if (is_into) {
        sink.placement = [&](uint64_t size) {
          const MutableBytes all = std::as_writable_bytes(std::span(target, size));
          if (size == 0) return Placement::into({});
          return Placement::into({all.first(3), all.subspan(3, 0), all.subspan(3)});
        };
      }
      CHECK(!feed_all(reader, sink, bytes.substr(0, cut)));
      CHECK(!feed_all(reader, sink, bytes.substr(cut)));
      REQUIRE(sink.frames.size() == 3);
      CHECK(sink.frames[0].header == "head");
      CHECK((is_into ? std::string(target) : sink.frames[0].payload) == "payload");
      CHECK(sink.frames[1].header.empty());
      CHECK(sink.frames[2].header == "h");
      CHECK(!reader.is_mid_frame());
    }
  }
}

TEST_CASE("what no peer sends is refused before anything is allocated or landed") {
  TransportLimits limits;
  limits.max_header_bytes = 100;
  limits.max_payload_bytes = 1000;
  const auto refused = [&](const FramePrefix& prefix) {
    FrameReader reader(limits, 0);
    Sink sink;
    const auto code = feed_all(reader, sink, wire(prefix, std::string(2000, 'x')));
    return code == ErrorCode::kCorrupt && sink.num_headers == 0;
  };
  CHECK(refused({.magic = 1}));
  CHECK(refused({.header_bytes = 101}));
  CHECK(refused({.header_bytes = 0xffff'ffff}));
  CHECK(refused({.payload_bytes = 1001}));
  CHECK(refused({.payload_bytes = ~uint64_t{0}}));
  CHECK(refused({.sequence = 1}));
  CHECK_FALSE(refused({.header_bytes = 100, .payload_bytes = 1000}));
}

TEST_CASE("a frame that is repeated or left out is out of order") {
  const TransportLimits limits;
  for (const uint64_t second : {0, 2}) {
    FrameReader reader(limits, 0);
    Sink sink;
    const auto code = feed_all(reader, sink, frame_bytes("a", "b", 0) + frame_bytes("a", "b", second));
    CHECK(code == ErrorCode::kCorrupt);
    CHECK(sink.frames.size() == 1);
  }
}

TEST_CASE("a held payload is seen where it lies, up to the view's size, and gathered beyond") {
  const TransportLimits limits;
  for (const size_t size : {5, 10, 11}) {
    CAPTURE(size);
    FrameReader reader(limits, 10);
    Sink sink;
    const std::string bytes = frame_bytes("h", std::string(size, 'p'));
    sink.fed = bytes_of(bytes);
    size_t at = 0;
    for (size_t end = 1; end <= bytes.size(); ++end) {  // a byte more each time, as a ring fills
      auto used = reader.feed(bytes_of(std::string_view(bytes).substr(at, end - at)), sink);
      REQUIRE(used);
      at += *used;
    }
    REQUIRE(sink.frames.size() == 1);
    CHECK(sink.frames[0].payload == std::string(size, 'p'));
    CHECK(sink.is_view == (size <= 10));
  }
}

TEST_CASE("payload bytes may be put into place from outside") {
  const TransportLimits limits;
  FrameReader reader(limits, 0);
  Sink sink;
  char target[10] = {};
  sink.placement = [&](uint64_t) {
    const MutableBytes all = std::as_writable_bytes(std::span(target));
    return Placement::into({all.first(4), all.subspan(4)});
  };
  const std::string bytes = frame_bytes("h", "0123456789");
  CHECK(!feed_all(reader, sink, bytes.substr(0, sizeof(FramePrefix) + 1 + 2)));
  iovec ranges[4];
  REQUIRE(reader.direct(ranges, 4) == 2);
  CHECK(ranges[0].iov_base == target + 2);
  CHECK(ranges[0].iov_len == 2);
  CHECK(ranges[1].iov_len == 6);
  CHECK(reader.direct(ranges, 1) == 1);
  memcpy(target + 2, "234", 3);
  reader.landed(3, sink);
  REQUIRE(reader.direct(ranges, 4) == 1);
  CHECK(ranges[0].iov_base == target + 5);
  memcpy(target + 5, "56789", 5);
  reader.landed(5, sink);
  REQUIRE(sink.frames.size() == 1);
  CHECK(std::string_view(target, 10) == "0123456789");
  CHECK(reader.direct(ranges, 4) == 0);
}

TEST_CASE("the queue's bytes are the same by copy and by ranges, in steps of any size") {
  const TransportLimits limits;
  const std::string payload = pattern(1000, 1);
  const std::string expected = frame_bytes("first", payload) + frame_bytes("", "", 1) + frame_bytes("third", "tail", 2);
  const auto fill = [&](SendQueue& queue) {
    const std::string_view all = payload;
    REQUIRE(queue.push({bytes_of("first"), {bytes_of(all.substr(0, 1)), {}, bytes_of(all.substr(1))}, 10, 0}, 0));
    REQUIRE(queue.push(frame_of("", "", 11), 0));
    REQUIRE(queue.push(frame_of("third", "tail", 12), 0));
  };
  for (size_t step = 1; step < 1200; step = step * 2 + 1) {
    CAPTURE(step);
    SendQueue by_copy(limits), by_ranges(limits);
    fill(by_copy);
    fill(by_ranges);
    std::string copied, gathered;
    std::vector<std::byte> piece(step);
    while (const size_t size = by_copy.copy_to(piece)) copied += text_of(Bytes(piece).first(size));
    while (!by_ranges.is_empty()) {
      iovec ranges[2];
      size_t left = step, sent = 0;
      for (size_t i = 0, count = by_ranges.gather(ranges, 2); i < count; ++i) {
        const size_t size = std::min(left, ranges[i].iov_len);
        gathered.append(static_cast<const char*>(ranges[i].iov_base), size);
        left -= size, sent += size;
      }
      by_ranges.advance(sent);
    }
    CHECK((copied == expected));
    CHECK((gathered == expected));
    CHECK(by_copy.take_sent() == std::vector<uint64_t>{10, 11, 12});
    CHECK(by_ranges.take_sent() == std::vector<uint64_t>{10, 11, 12});
  }
}
