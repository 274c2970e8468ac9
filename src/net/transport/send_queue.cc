#include "net/transport/send_queue.h"

#include <string.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "net/transport/frame.h"

namespace tandem::transport {

Status SendQueue::push(const Frame& frame, int64_t now_ns) {
  uint64_t payload_bytes = 0;
  for (const Bytes& range : frame.payload) payload_bytes += range.size();
  if (frame.header.size() > limits_.max_header_bytes || payload_bytes > limits_.max_payload_bytes) {
    return Error{ErrorCode::kInvalidArgument, "a frame of " + std::to_string(frame.header.size()) + " + " +
                                                  std::to_string(payload_bytes) + " bytes is over the limits"};
  }
  const uint64_t size = sizeof(FramePrefix) + frame.header.size() + payload_bytes;
  if (!frames_.empty() &&
      (frames_.size() >= limits_.max_queued_frames || queued_bytes_ + size > limits_.max_queued_bytes)) {
    was_refused_ = true;
    return Error{ErrorCode::kExhausted, "the connection's queue is full"};
  }
  Queued queued;
  queued.head.resize(sizeof(FramePrefix) + frame.header.size());
  const FramePrefix prefix = {.header_bytes = static_cast<uint32_t>(frame.header.size()),
                              .payload_bytes = payload_bytes,
                              .sequence = next_sequence_++};
  memcpy(queued.head.data(), &prefix, sizeof prefix);
  if (!frame.header.empty()) memcpy(queued.head.data() + sizeof prefix, frame.header.data(), frame.header.size());
  for (const Bytes& range : frame.payload) {
    if (!range.empty()) queued.payload.push_back(range);
  }
  queued.size = size;
  queued.tag = frame.tag;
  queued.deadline_ns =
      frame.deadline_ms > 0 ? now_ns + frame.deadline_ms * 1'000'000 : std::numeric_limits<int64_t>::max();
  queued_bytes_ += size;
  frames_.push_back(std::move(queued));
  return Done{};
}

Bytes SendQueue::rest_of(const Queued& frame, size_t range, size_t offset) {
  return (range == 0 ? Bytes(frame.head) : frame.payload[range - 1]).subspan(offset);
}

size_t SendQueue::gather(iovec* ranges, size_t max) const {
  size_t count = 0, range = range_, offset = offset_;
  for (const Queued& frame : frames_) {
    for (; range <= frame.payload.size(); ++range, offset = 0) {
      if (count == max) return count;
      const Bytes rest = rest_of(frame, range, offset);
      ranges[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    range = 0;
  }
  return count;
}

size_t SendQueue::copy_to(MutableBytes out) {
  size_t copied = 0;
  while (copied < out.size() && !frames_.empty()) {
    const Bytes rest = rest_of(frames_.front(), range_, offset_);
    const size_t size = std::min(rest.size(), out.size() - copied);
    memcpy(out.data() + copied, rest.data(), size);
    copied += size;
    advance(size);
  }
  return copied;
}

void SendQueue::advance(size_t size) {
  while (size > 0) {
    TANDEM_CHECK(!frames_.empty());
    const Queued& frame = frames_.front();
    const size_t left = rest_of(frame, range_, offset_).size();
    if (size < left) {
      offset_ += size;
      return;
    }
    size -= left;
    offset_ = 0;
    if (++range_ <= frame.payload.size()) continue;
    range_ = 0;
    queued_bytes_ -= frame.size;
    sent_.push_back(frame.tag);
    frames_.pop_front();
  }
}

bool SendQueue::take_has_room() {
  if (!was_refused_ || frames_.size() > limits_.max_queued_frames / 2 || queued_bytes_ > limits_.max_queued_bytes / 2) {
    return false;
  }
  was_refused_ = false;
  return true;
}

int64_t SendQueue::next_deadline_ns() const {
  int64_t earliest = std::numeric_limits<int64_t>::max();
  for (const Queued& frame : frames_) earliest = std::min(earliest, frame.deadline_ns);
  return earliest;
}

}  // namespace tandem::transport
