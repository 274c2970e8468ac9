#include "net/transport/frame_reader.h"

#include <string.h>

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tandem::transport {
namespace {

constexpr uint64_t kKeptBytes = 8 << 20;  // of the buffer for held payloads; a larger one is given back after its frame

}  // namespace

Result<size_t> FrameReader::feed(Bytes bytes, FrameSink& sink) {
  size_t used = 0;
  while (!sink.is_closed()) {
    if (stage_ == Stage::kPayload) {
      TRY_ASSIGN(const size_t size, feed_payload(bytes.subspan(used), sink));
      return used + size;
    }
    const bool is_prefix = stage_ == Stage::kPrefix;
    const uint64_t wanted = is_prefix ? sizeof(FramePrefix) : prefix_.header_bytes;
    const size_t size = static_cast<size_t>(std::min<uint64_t>(wanted - taken_, bytes.size() - used));
    std::byte* target = is_prefix ? prefix_bytes_ : header_.data();
    if (size > 0) memcpy(target + taken_, bytes.data() + used, size);
    used += size;
    taken_ += size;
    if (taken_ < wanted) return used;
    if (is_prefix) {
      TRY(begin_header());
    } else {
      TRY(begin_payload(sink));
    }
  }
  return used;
}

Status FrameReader::begin_header() {
  prefix_ = copy_from<FramePrefix>(prefix_bytes_);
  TRY(check_prefix(prefix_, next_sequence_, limits_));
  ++next_sequence_;
  header_.resize(prefix_.header_bytes);
  stage_ = Stage::kHeader;
  taken_ = 0;
  return Done{};
}

Status FrameReader::begin_payload(FrameSink& sink) {
  stage_ = Stage::kPayload;
  taken_ = 0;
  range_ = 0;
  range_offset_ = 0;
  placement_ = sink.on_header(header_, prefix_.payload_bytes);
  if (placement_.kind == Placement::Kind::kClose) return Error{ErrorCode::kCorrupt, "the frame was refused"};
  if (placement_.kind == Placement::Kind::kInto) {
    uint64_t size = 0;
    for (const MutableBytes& range : placement_.ranges) size += range.size();
    TANDEM_CHECK(size == prefix_.payload_bytes);
  } else if (placement_.kind == Placement::Kind::kHold && !is_viewing() && prefix_.payload_bytes > held_capacity_) {
    held_ = nullptr;  // before the new one is made
    held_capacity_ = 0;
    held_.reset(new (std::nothrow) std::byte[prefix_.payload_bytes]);
    if (held_ == nullptr) return Error{ErrorCode::kExhausted, "no memory for a frame"};
    held_capacity_ = prefix_.payload_bytes;
  }
  return Done{};
}

Result<size_t> FrameReader::feed_payload(Bytes bytes, FrameSink& sink) {
  const uint64_t left = prefix_.payload_bytes - taken_;
  const bool is_whole = taken_ == 0 && bytes.size() >= left;
  if (placement_.kind == Placement::Kind::kHold && (is_whole || is_viewing())) {
    if (!is_whole) return size_t{0};
    finish(sink, bytes.first(left));
    return static_cast<size_t>(left);
  }
  const Bytes piece = bytes.first(static_cast<size_t>(std::min<uint64_t>(left, bytes.size())));
  store(piece);
  if (taken_ == prefix_.payload_bytes) {
    finish(sink, placement_.kind == Placement::Kind::kHold ? Bytes(held_.get(), prefix_.payload_bytes) : Bytes());
  }
  return piece.size();
}

void FrameReader::store(Bytes bytes) {
  if (placement_.kind == Placement::Kind::kHold && !bytes.empty()) {
    memcpy(held_.get() + taken_, bytes.data(), bytes.size());
  }
  taken_ += bytes.size();
  if (placement_.kind != Placement::Kind::kInto) return;
  while (!bytes.empty()) {
    const MutableBytes rest = placement_.ranges[range_].subspan(range_offset_);
    const size_t size = std::min(rest.size(), bytes.size());
    if (size > 0) memcpy(rest.data(), bytes.data(), size);
    bytes = bytes.subspan(size);
    range_offset_ += size;
    if (size == rest.size()) ++range_, range_offset_ = 0;
  }
}

size_t FrameReader::direct(iovec* ranges, size_t max) const {
  if (stage_ != Stage::kPayload || max == 0) return 0;
  if (placement_.kind == Placement::Kind::kHold && !is_viewing()) {
    ranges[0] = {held_.get() + taken_, static_cast<size_t>(prefix_.payload_bytes - taken_)};
    return 1;
  }
  if (placement_.kind != Placement::Kind::kInto) return 0;
  size_t count = 0, offset = range_offset_;
  for (size_t i = range_; i < placement_.ranges.size() && count < max; ++i, offset = 0) {
    const MutableBytes rest = placement_.ranges[i].subspan(offset);
    if (!rest.empty()) ranges[count++] = {rest.data(), rest.size()};
  }
  return count;
}

void FrameReader::landed(size_t size, FrameSink& sink) {
  TANDEM_CHECK(size <= prefix_.payload_bytes - taken_);
  taken_ += size;
  if (placement_.kind == Placement::Kind::kInto) {
    while (size > 0) {
      const size_t left = placement_.ranges[range_].size() - range_offset_;
      const size_t step = std::min<size_t>(left, size);
      range_offset_ += step;
      size -= step;
      if (step == left) ++range_, range_offset_ = 0;
    }
  }
  if (taken_ < prefix_.payload_bytes) return;
  finish(sink, placement_.kind == Placement::Kind::kHold ? Bytes(held_.get(), prefix_.payload_bytes) : Bytes());
}

void FrameReader::abandon() {
  if (stage_ == Stage::kPayload) placement_ = Placement::skip();
}

void FrameReader::finish(FrameSink& sink, Bytes payload) {
  const bool is_wanted = placement_.kind != Placement::Kind::kSkip;
  stage_ = Stage::kPrefix;
  taken_ = 0;
  placement_ = Placement::skip();
  if (is_wanted && !sink.is_closed()) sink.on_frame(header_, payload);
  if (held_capacity_ > kKeptBytes) {
    held_ = nullptr;
    held_capacity_ = 0;
  }
}

}  // namespace tandem::transport
