#pragma once
// A ring of bytes in shared memory that its writer owns and its reader maps read-only.
//
// Each side exports one region: the ring it writes, and a control page that it alone writes: how far it has written
// its own ring, how far it has read the peer's, and what it sleeps for. So neither side can write a byte of the
// other's memory, and a writer that was stopped in mid-copy goes on writing to its own ring only. What the peer's
// control page says is read once, checked, then used.
// The kernel keeps it so: a region is sealed against shrinking (no SIGBUS) and against new writable mappings.
// Source: memfd_create(2), fcntl(2) F_SEAL_*.

#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "net/transport/owned_fd.h"
#include "net/transport/transport.h"

namespace tandem::transport {

struct RingControl {
  // Counted in bytes from the connection's start; a ring position is the count modulo the ring's size.
  alignas(64) std::atomic<uint64_t> produced{0};
  alignas(64) std::atomic<uint64_t> consumed{0};
  // How often this side has gone to sleep until the peer produces, or consumes. It is woken once for each.
  alignas(64) std::atomic<uint64_t> waits_for_data{0};
  alignas(64) std::atomic<uint64_t> waits_for_room{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingControl) <= 4096);

class RingRegion {
 public:
  static constexpr uint64_t kMaxRingBytes = uint64_t{1} << 30;

  // Ours: a power of two of at least a page. kInvalidArgument, kExhausted.
  static Result<RingRegion> create(uint64_t ring_bytes);
  // A peer's, read-only. kCorrupt when it is not as the peer says or could be changed under us.
  static Result<RingRegion> map_peer(OwnedFd file, uint64_t ring_bytes);

  RingRegion() = default;
  RingRegion(RingRegion&& other) noexcept;
  RingRegion& operator=(RingRegion&& other) noexcept;
  ~RingRegion();

  int fd() const { return file_.get(); }
  void close_fd() { file_.reset(); }  // once the peer has it; the mapping stays
  uint64_t ring_bytes() const { return ring_bytes_; }
  bool is_mapped() const { return base_ != nullptr; }
  RingControl& own_control() const { return *reinterpret_cast<RingControl*>(base_); }  // of create() only
  const RingControl& control() const { return *reinterpret_cast<const RingControl*>(base_); }
  // The ring is mapped twice in a row: ring_bytes from any position are one range.
  std::byte* at(uint64_t count) const;

 private:
  Status map(int protection);
  OwnedFd file_;
  std::byte* base_ = nullptr;
  uint64_t ring_bytes_ = 0;
};

class RingWriter {
 public:
  RingWriter(const RingRegion& own, const RingRegion& peer) : own_(own), peer_(peer) {}

  Result<MutableBytes> room();  // free, as one range; kCorrupt: the peer's count makes no sense
  void publish(size_t size);    // the first `size` bytes of it are written
  // True when the reader sleeps and has not been woken from this sleep.
  bool must_wake();
  void announce_sleep();  // before sleeping for room; then look at room() once more

 private:
  const RingRegion& own_;
  const RingRegion& peer_;
  uint64_t produced_ = 0, consumed_ = 0, num_sleeps_ = 0, woken_ = 0;
};

class RingReader {
 public:
  RingReader(const RingRegion& own, const RingRegion& peer) : own_(own), peer_(peer) {}

  Result<Bytes> available();  // unread, as one range; kCorrupt: the peer's count makes no sense
  void consume(size_t size);
  bool must_wake();       // the writer sleeps for room, and has not been woken from this sleep
  void announce_sleep();  // before sleeping for data; then look at available() once more

 private:
  const RingRegion& own_;
  const RingRegion& peer_;
  uint64_t produced_ = 0, consumed_ = 0, num_sleeps_ = 0, woken_ = 0;
};

}  // namespace tandem::transport
