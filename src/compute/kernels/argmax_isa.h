#pragma once
// Greedy choice: the index of the largest of n values, the lowest one on ties. Any thread, under DenormalsOff.

#include <stdint.h>

namespace tandem::kernels {

struct tk_argmax {
  uint32_t index;  // 0 where nothing exceeds -inf
  float value;
  // False if any value is NaN or +inf, or all are -inf: the request these logits belong to has failed. Single values of
  // -inf are tokens that a mask forbids.
  bool is_valid;
};

typedef tk_argmax tk_argmax_fn(uint32_t n, const float* values);

tk_argmax_fn tk_argmax_ref, tk_argmax_avx2;

}  // namespace tandem::kernels
