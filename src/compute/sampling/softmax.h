#pragma once
// The sums that sampling and log-probabilities share, in the order of docs/numerics.md 8. Pure functions, any thread.

#include <cstddef>
#include <span>

#include "base/result.h"

namespace tandem::sampling {

// The largest value. An Error when a value is NaN or +infinity, or when none is finite (all -infinity, or no value):
// such a row can choose no token. -infinity by itself is fine: a token that is masked out.
Result<float> checked_max(std::span<const float> logits);

// t = ((x - max) / temperature) * log2 e, one rounding each; exponents = t, weights = exp2(t): 1 for the best
// token, 0 from 2^-126 down. All spans have the same length; temperature > 0.
void softmax_weights(std::span<const float> x, float max, float temperature, std::span<float> exponents,
                     std::span<float> weights);
// The same without vector instructions: what the other must equal.
void softmax_weights_plain(std::span<const float> x, float max, float temperature, std::span<float> exponents,
                           std::span<float> weights);

// 16 neighbouring segments of equal length (the last ones may be shorter), 16 partial sums inside each, joined by
// balanced trees.
float vocabulary_sum(std::span<const float> values);

}  // namespace tandem::sampling
