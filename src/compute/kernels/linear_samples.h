#pragma once
// Pseudo-random panels and rows of every format, the same on every machine: what the self-test multiplies, and what
// tests compare instruction sets on.

#include <cstdint>
#include <vector>

#include "compute/kernels/linear_isa.h"

namespace tandem::kernels {

// xorshift64*.
class SampleRandom {
 public:
  explicit SampleRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint32_t bits() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint32_t>((state_ * 0x2545F4914F6CDD1Dull) >> 32);
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((static_cast<uint64_t>(bits()) * bound) >> 32); }
  float unit() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }  // [0, 1)

 private:
  uint64_t state_;
};

// Memory that begins at a multiple of 64, zeroed.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : lines_((size + 63) / 64), size_(size) {}
  uint8_t* data() { return lines_.empty() ? nullptr : lines_.data()->bytes; }
  size_t size() const { return size_; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> lines_;
  size_t size_;
};

struct SampleFormat {
  const char* name;
  tk_panel_format format;
};

// Every format that packing makes; block formats are named after the file type that has them.
std::vector<SampleFormat> sample_formats();

// Panels of random levels over the format's whole range, scales and minima of either sign with zeros and, for f16,
// denormals among them; float panels with zeros, denormals and sizes from 2^-20 to 2^4.
AlignedBytes sample_panels(const tk_panel_format& format, uint32_t k, uint32_t num_panels, SampleRandom& random);

// f32 rows with blocks of zeros, of denormals, of tiny and of large values among ordinary ones.
std::vector<float> sample_rows(uint32_t num_rows, uint32_t k, SampleRandom& random);

}  // namespace tandem::kernels
