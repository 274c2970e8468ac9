#pragma once
// TimedPath: one way to move bytes from one thread to another, to be timed. The plain TCP copy is what others are
// compared with: blocking sockets, no frames, straight from pool to pool.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::transport_lab {

constexpr uint64_t kPoolBytes = 64 << 20;
constexpr uint64_t kHeaderBytes = 64;  // of each frame

class TimedPath {
 public:
  virtual ~TimedPath() = default;
  // Seconds of each round trip of a header with nothing behind it.
  virtual Result<std::vector<double>> round_trips(uint32_t count) = 0;
  // Seconds until that many payloads have landed and the other side has said so. frame_bytes <= kPoolBytes.
  virtual Result<double> move(uint64_t frame_bytes, uint64_t num_frames) = 0;
};

Result<std::unique_ptr<TimedPath>> open_plain_tcp();
// By a listening address of net/transport.
Result<std::unique_ptr<TimedPath>> open_transport(const std::string& address);

// Where frame `index` lies in a pool of kPoolBytes: one after the other, around.
inline uint64_t pool_offset(uint64_t index, uint64_t frame_bytes) {
  return index % (kPoolBytes / frame_bytes) * frame_bytes;
}
double now_s();

}  // namespace tandem::transport_lab
