#pragma once
// PlainRead: how fast given bytes can be read now, by nothing but loads. On a guest machine that changes within
// seconds, so it is measured beside whatever is compared with it.

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace tandem::limits {

class PlainRead {
 public:
  // Borrows the bytes. Each of the threads reads its part of every span; small ends that fill no vector are left out.
  // kUnavailable on a machine without AVX2, or when there is nothing to read.
  static Result<PlainRead> create(const std::vector<std::span<const uint8_t>>& spans, uint32_t num_threads);

  // Reads everything until at least `min_s` have passed, with threads that start and end in here. Mean over the passes.
  double bytes_per_s(double min_s = 0.02) const;

  uint64_t size_bytes() const { return size_bytes_; }  // of a pass

 private:
  PlainRead() = default;

  uint64_t (*read_)(const void*, size_t) = nullptr;
  std::vector<std::vector<std::span<const uint8_t>>> parts_;  // by thread
  uint64_t size_bytes_ = 0;
};

}  // namespace tandem::limits
