// Any bytes as a connection's stream, cut anywhere: the reader must return, stay inside its limits and placements, and
// deliver whole payloads. The first two bytes of the input say how it is read.

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "net/transport/frame_reader.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

struct Sink final : FrameSink {
  Placement on_header(Bytes header, uint64_t payload_bytes) override {
    TANDEM_CHECK(header.size() <= 200 && payload_bytes <= 500);
    size = payload_bytes;
    switch ((mode + header.size()) % 4) {
      case 0:
        return Placement::skip();
      case 1:
        return mode > 200 ? Placement::close() : Placement::hold();
      case 2: {
        const MutableBytes all = std::as_writable_bytes(std::span(target, payload_bytes));
        return Placement::into({all.first(payload_bytes / 3), {}, all.subspan(payload_bytes / 3)});
      }
      default:
        return Placement::hold();
    }
  }
  void on_frame(Bytes, Bytes payload) override {
    TANDEM_CHECK(payload.empty() || payload.size() == size);
    unsigned sum = 0;  // reads all of it
    for (const std::byte byte : payload) sum += static_cast<unsigned>(byte);
    total += sum;
    is_shut = mode % 7 == 6;
  }
  bool is_closed() const override { return is_shut; }

  uint8_t mode = 0;
  uint64_t size = 0;
  unsigned total = 0;
  bool is_shut = false;
  char target[500];
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  TransportLimits limits;
  limits.max_header_bytes = 200;
  limits.max_payload_bytes = 500;
  Sink sink;
  sink.mode = bytes[0];
  FrameReader reader(limits, bytes[0] % 3 * 100);
  // A copy of exactly this size, so that a read beyond it is seen.
  const std::vector<std::byte> input(reinterpret_cast<const std::byte*>(bytes + 2),
                                     reinterpret_cast<const std::byte*>(bytes + size));
  const size_t step = bytes[1] + size_t{1};
  size_t at = 0, end = 0;
  while (end < input.size() && !sink.is_shut) {
    end = std::min(input.size(), end + step);
    iovec ranges[3];
    const size_t num_direct = bytes[0] % 2 == 0 ? reader.direct(ranges, 3) : 0;
    if (num_direct > 0) {
      size_t landed = 0;
      for (size_t i = 0; i < num_direct; ++i) {
        const size_t part = std::min(ranges[i].iov_len, input.size() - at);
        memcpy(ranges[i].iov_base, input.data() + at, part);
        at += part, landed += part;
      }
      reader.landed(landed, sink);
      end = std::max(end, at);
      continue;
    }
    auto used = reader.feed(Bytes(input).subspan(at, end - at), sink);
    if (!used) return 0;
    TANDEM_CHECK(*used <= end - at);
    at += *used;
    if (*used > 0) end -= std::min(end - at, step);  // a frame ended: the rest of this piece again
    if (bytes[1] % 5 == 4 && at > input.size() / 2) reader.abandon();
  }
  return 0;
}
