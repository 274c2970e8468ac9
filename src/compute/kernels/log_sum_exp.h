#pragma once
// log(sum(exp(x))) over a vocabulary row (numerics 8). Pure, any thread, under DenormalsOff.
//
// The row is cut into 16 segments of ceil(n / 16) elements; where n is not divisible by 16 the last ones are shorter
// or empty, as if the row went on with -inf. Each segment is summed in lanes16 relative to the maximum of the whole
// row, the 16 sums are joined by the tree of neighbours, so a rank that holds neighbouring segments can compute its
// subtree alone.

#include <cstdint>

#include "compute/kernels/element_kernels.h"

namespace tandem::kernels {

inline constexpr uint32_t kVocabularySegments = 16;

// Elements of a full segment.
inline uint32_t vocabulary_segment_size(uint32_t n) { return (n + kVocabularySegments - 1) / kVocabularySegments; }

// The 16 segment sums of `x` relative to `max`, its largest value.
void segment_sums(const ElementKernels& kernels, uint32_t n, const float* x, float max,
                  float sums[kVocabularySegments]);

// max + log(tree of sums), in double without libm (the same on every machine), rounded once.
float join_log_sum_exp(float max, const float sums[kVocabularySegments]);

// Both. NaN where the row is not valid in the sense of tk_argmax.
float log_sum_exp(const ElementKernels& kernels, uint32_t n, const float* x);

// Natural logarithm of a positive normal double, by IEEE operations only; within 2 units in the last place.
double portable_log(double x);

}  // namespace tandem::kernels
