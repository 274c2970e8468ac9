// A peer that writes anything into its ring and its counts, at any time: the reader and the writer on our side must
// return, stay inside the mappings, and give up once the counts make no sense.
// Input: steps of one byte that says what, then its operands.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "net/transport/frame_reader.h"
#include "net/transport/ring.h"
#include "net/transport/send_queue.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

constexpr uint64_t kRingBytes = 4096;

struct Sink final : FrameSink {
  Placement on_header(Bytes header, uint64_t) override {
    if (header.size() % 3 == 0) return Placement::hold();
    return header.size() % 3 == 1 ? Placement::skip() : Placement::hold();
  }
  void on_frame(Bytes, Bytes payload) override {
    unsigned sum = 0;
    for (const std::byte byte : payload) sum += static_cast<unsigned>(byte);
    total += sum;
  }
  bool is_closed() const override { return false; }
  unsigned total = 0;
};

struct Operands {
  const uint8_t* bytes;
  size_t size;
  template <class T>
  T take() {
    T value = {};
    const size_t part = std::min(size, sizeof value);
    memcpy(&value, bytes, part);
    bytes += part, size -= part;
    return value;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const RingRegion hostile = std::move(RingRegion::create(kRingBytes)).value();
  static const RingRegion seen = std::move(RingRegion::map_peer(OwnedFd(dup(hostile.fd())), kRingBytes)).value();
  static const RingRegion own = std::move(RingRegion::create(kRingBytes)).value();
  hostile.own_control().produced = 0;
  hostile.own_control().consumed = 0;
  TransportLimits limits;
  limits.max_header_bytes = 1000;
  limits.max_payload_bytes = 10'000;
  RingReader reader(own, seen);
  RingWriter writer(own, seen);
  FrameReader frames(limits, kRingBytes / 2);
  SendQueue queue(limits);
  Sink sink;
  uint64_t written = 0, sequence = 0;
  Operands input = {bytes, size};
  while (input.size > 0) {
    const auto what = input.take<uint8_t>();
    switch (what % 8) {
      case 0:
        hostile.own_control().produced = input.take<uint64_t>();
        break;
      case 1:
        hostile.own_control().consumed = input.take<uint16_t>();
        break;
      case 2: {  // a prefix that is right, or nearly
        const FramePrefix prefix = {.header_bytes = input.take<uint16_t>() % 1100u,
                                    .payload_bytes = input.take<uint16_t>() % 11'000u,
                                    .sequence = what > 250 ? 77 : sequence++};
        memcpy(hostile.at(written), &prefix, sizeof prefix);
        written += sizeof prefix;
        break;
      }
      case 3:
        memset(hostile.at(written), what, std::min<size_t>(input.take<uint16_t>(), kRingBytes));
        break;
      case 4:
        written += input.take<uint16_t>();
        break;
      case 5:
        hostile.own_control().produced = written;
        break;
      case 6: {
        (void)queue.push({.header = object_bytes(what), .payload = {}}, 0);
        auto room = writer.room();
        if (!room) return 0;
        TANDEM_CHECK(room->size() <= kRingBytes);
        writer.publish(queue.copy_to(*room));
        break;
      }
      default: {
        auto unread = reader.available();
        if (!unread) return 0;
        TANDEM_CHECK(unread->size() <= kRingBytes);
        auto used = frames.feed(*unread, sink);
        if (!used) return 0;
        reader.consume(*used);
      }
    }
  }
  return 0;
}
