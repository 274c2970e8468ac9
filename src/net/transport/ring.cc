#include "net/transport/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bit>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"

namespace tandem::transport {
namespace {

constexpr uint64_t kControlBytes = 4096;

bool is_ring_size(uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= 4096 && bytes <= RingRegion::kMaxRingBytes;
}

Error system_error(const char* what) { return {ErrorCode::kExhausted, std::string(what) + ": " + strerror(errno)}; }

// Peer's words about its region are not enough: a file that can shrink is a SIGBUS, and one of huge pages may be too.
Status check_peer_file(int fd, uint64_t ring_bytes) {
  // First of all: only a file in memory has seals. Other questions to a file of who knows what may wait for ever.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return Error{ErrorCode::kCorrupt, "the peer's ring may shrink"};
  struct stat file = {};
  struct statfs system = {};
  if (!is_ring_size(ring_bytes) || fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0 ||
      static_cast<uint64_t>(file.st_size) != kControlBytes + ring_bytes || system.f_type != TMPFS_MAGIC) {
    return Error{ErrorCode::kCorrupt, "the peer's ring is not what it says"};
  }
  return Done{};
}

// Sleeping, on both sides: announce, fence, look once more. Waking: change, fence, look for an announcement. One of the
// two sees the other.
void announce(std::atomic<uint64_t>& sleeps, uint64_t number) {
  sleeps.store(number, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
bool is_new_sleep(const std::atomic<uint64_t>& sleeps, uint64_t& woken) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t sleep = sleeps.load(std::memory_order_relaxed);
  return sleep != 0 && std::exchange(woken, sleep) != sleep;
}

}  // namespace

Result<RingRegion> RingRegion::create(uint64_t ring_bytes) {
  if (!is_ring_size(ring_bytes)) return Error{ErrorCode::kInvalidArgument, "a ring's size is a power of two of pages"};
  RingRegion region;
  region.ring_bytes_ = ring_bytes;
  region.file_ = OwnedFd(memfd_create("tandem-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (region.fd() < 0) return system_error("memfd_create");
  if (ftruncate(region.fd(), static_cast<off_t>(kControlBytes + ring_bytes)) != 0) return system_error("ftruncate");
  TRY(region.map(PROT_READ | PROT_WRITE));
  new (region.base_) RingControl;
  // Our mapping stays writable; nobody gets another one.
  if (fcntl(region.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return system_error("F_ADD_SEALS");
  }
  return region;
}

Result<RingRegion> RingRegion::map_peer(OwnedFd file, uint64_t ring_bytes) {
  RingRegion region;
  region.ring_bytes_ = ring_bytes;
  region.file_ = std::move(file);
  TRY(check_peer_file(region.fd(), ring_bytes));
  TRY(region.map(PROT_READ));
  region.close_fd();
  return region;
}

Status RingRegion::map(int protection) {
  void* space = mmap(nullptr, kControlBytes + 2 * ring_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return system_error("mmap of a ring");
  base_ = static_cast<std::byte*>(space);
  const bool is_mapped =
      mmap(base_, kControlBytes + ring_bytes_, protection, MAP_SHARED | MAP_FIXED, fd(), 0) != MAP_FAILED &&
      mmap(base_ + kControlBytes + ring_bytes_, ring_bytes_, protection, MAP_SHARED | MAP_FIXED, fd(), kControlBytes) !=
          MAP_FAILED;
  if (!is_mapped) return system_error("mmap of a ring");
  return Done{};
}

RingRegion::RingRegion(RingRegion&& other) noexcept
    : file_(std::move(other.file_)), base_(std::exchange(other.base_, nullptr)), ring_bytes_(other.ring_bytes_) {}

RingRegion& RingRegion::operator=(RingRegion&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(base_, other.base_);
  std::swap(ring_bytes_, other.ring_bytes_);
  return *this;
}

RingRegion::~RingRegion() {
  if (base_ != nullptr) munmap(base_, kControlBytes + 2 * ring_bytes_);
}

std::byte* RingRegion::at(uint64_t count) const { return base_ + kControlBytes + (count & (ring_bytes_ - 1)); }

Result<MutableBytes> RingWriter::room() {
  const uint64_t consumed = peer_.control().consumed.load(std::memory_order_acquire);
  if (consumed < consumed_ || consumed > produced_) {
    return Error{ErrorCode::kCorrupt, "the peer has read what was not written"};
  }
  consumed_ = consumed;
  return MutableBytes(own_.at(produced_), own_.ring_bytes() - (produced_ - consumed_));
}

void RingWriter::publish(size_t size) {
  produced_ += size;
  own_.own_control().produced.store(produced_, std::memory_order_release);
}

bool RingWriter::must_wake() { return is_new_sleep(peer_.control().waits_for_data, woken_); }

void RingWriter::announce_sleep() { announce(own_.own_control().waits_for_room, ++num_sleeps_); }

Result<Bytes> RingReader::available() {
  const uint64_t produced = peer_.control().produced.load(std::memory_order_acquire);
  if (produced < produced_ || produced - consumed_ > peer_.ring_bytes()) {
    return Error{ErrorCode::kCorrupt, "the peer's ring holds more than it can"};
  }
  produced_ = produced;
  return Bytes(peer_.at(consumed_), produced_ - consumed_);
}

void RingReader::consume(size_t size) {
  TANDEM_CHECK(size <= produced_ - consumed_);
  consumed_ += size;
  own_.own_control().consumed.store(consumed_, std::memory_order_release);
}

bool RingReader::must_wake() { return is_new_sleep(peer_.control().waits_for_room, woken_); }

void RingReader::announce_sleep() { announce(own_.own_control().waits_for_data, ++num_sleeps_); }

}  // namespace tandem::transport
