#pragma once
// SendQueue: the frames that wait to leave a connection, as one stream of bytes. Bounded in frames and bytes; payloads
// are borrowed. One thread.

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "net/transport/transport.h"

namespace tandem::transport {

class SendQueue {
 public:
  explicit SendQueue(const TransportLimits& limits) : limits_(limits) {}

  // kExhausted: full (wants_room() stays true until it is half empty); kInvalidArgument: over a limit of one frame.
  Status push(const Frame& frame, int64_t now_ns);
  bool is_empty() const { return frames_.empty(); }
  void clear() { frames_.clear(), queued_bytes_ = 0; }

  // Points at the next bytes to send, up to `max` ranges. Valid until advance() or clear().
  size_t gather(iovec* ranges, size_t max) const;
  // Copies the next bytes to `out` and advances past them. Returns how many.
  size_t copy_to(MutableBytes out);
  // `size` bytes have left.
  void advance(size_t size);

  // Tags of the frames that have left since the last call.
  std::vector<uint64_t> take_sent() { return std::exchange(sent_, {}); }
  // True once, when a refused push() would be taken now.
  bool take_has_room();
  // The earliest deadline of a queued frame; INT64_MAX: none.
  int64_t next_deadline_ns() const;

 private:
  struct Queued {
    std::vector<std::byte> head;  // prefix and header
    std::vector<Bytes> payload;
    uint64_t size = 0, tag = 0;
    int64_t deadline_ns = 0;
  };
  // The range of `frame` that `offset` falls into, from there on.
  static Bytes rest_of(const Queued& frame, size_t range, size_t offset);

  const TransportLimits& limits_;
  std::deque<Queued> frames_;
  uint64_t queued_bytes_ = 0;
  uint64_t next_sequence_ = 0;
  size_t range_ = 0, offset_ = 0;  // how far the first frame is: range 0 is the head
  bool was_refused_ = false;
  std::vector<uint64_t> sent_;
};

}  // namespace tandem::transport
