#pragma once
// DenormalsOff: while one lives, this thread reads and writes denormal floats as zero, and rounds to nearest even.
// Every kernel has to run under one: the bf16 instructions of AVX-512 always work this way, so all must
// (docs/numerics.md 0). Worker threads hold one for their whole life; a caller's thread around its kernels.

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tandem::kernels {

class DenormalsOff {
 public:
  DenormalsOff(const DenormalsOff&) = delete;
  DenormalsOff& operator=(const DenormalsOff&) = delete;

#if defined(__x86_64__)
  DenormalsOff() : saved_(_mm_getcsr()) { _mm_setcsr(kAllExceptionsMasked | kFlushToZero | kDenormalsAreZero); }
  ~DenormalsOff() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kAllExceptionsMasked = 0x1F80;
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;
  unsigned saved_;
#else
  DenormalsOff() = default;
#endif
};

}  // namespace tandem::kernels
