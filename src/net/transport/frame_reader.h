#pragma once
// FrameReader: turns a stream of bytes that a stranger may have written into checked frames. One thread; no I/O.

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "net/transport/frame.h"

namespace tandem::transport {

class FrameSink {
 public:
  virtual Placement on_header(Bytes header, uint64_t payload_bytes) = 0;
  virtual void on_frame(Bytes header, Bytes payload) = 0;
  virtual bool is_closed() const = 0;  // the sink closed in a callback: nothing more is read

 protected:
  ~FrameSink() = default;
};

class FrameReader {
 public:
  // A held payload of up to `view_bytes` is left in the fed bytes until it is there whole, and shown from there; a
  // larger one is gathered in a buffer of our own.
  FrameReader(const TransportLimits& limits, uint64_t view_bytes) : limits_(limits), view_bytes_(view_bytes) {}

  // Reads from the front of `bytes` up to the end of a frame, at most. Returns how much of it was taken: 0 when more
  // is needed first. kCorrupt: no honest peer sends this.
  Result<size_t> feed(Bytes bytes, FrameSink& sink);

  // Where the next payload bytes belong, for a reader that can put them there itself; at most `max` ranges, none when
  // there is no such place. Then landed() with how many arrived.
  size_t direct(iovec* ranges, size_t max) const;
  void landed(size_t size, FrameSink& sink);

  void abandon();  // the rest of the frame at hand is skipped, and its placement not touched
  bool is_mid_frame() const { return stage_ != Stage::kPrefix || taken_ > 0; }
  bool is_copying() const { return stage_ == Stage::kPayload && !is_viewing(); }
  void set_view_bytes(uint64_t view_bytes) { view_bytes_ = view_bytes; }  // between frames

 private:
  enum class Stage : uint8_t { kPrefix, kHeader, kPayload };
  bool is_viewing() const { return placement_.kind == Placement::Kind::kHold && prefix_.payload_bytes <= view_bytes_; }
  Status begin_header();
  Status begin_payload(FrameSink& sink);
  void store(Bytes bytes);
  void finish(FrameSink& sink, Bytes payload);
  Result<size_t> feed_payload(Bytes bytes, FrameSink& sink);

  const TransportLimits& limits_;
  uint64_t view_bytes_;
  Stage stage_ = Stage::kPrefix;
  uint64_t next_sequence_ = 0;
  std::byte prefix_bytes_[sizeof(FramePrefix)] = {};
  FramePrefix prefix_;
  std::vector<std::byte> header_;
  uint64_t taken_ = 0;  // bytes of this stage that are here
  Placement placement_;
  size_t range_ = 0;  // kInto: where the next byte goes
  uint64_t range_offset_ = 0;
  std::unique_ptr<std::byte[]> held_;  // kHold: the payload so far
  uint64_t held_capacity_ = 0;
};

}  // namespace tandem::transport
