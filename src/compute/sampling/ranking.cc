#include "compute/sampling/ranking.h"

#include <algorithm>
#include <bit>

namespace tandem::sampling {

uint64_t rank_key(float logit, size_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes +0
  const uint32_t rising = (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
  return static_cast<uint64_t>(~rising) << 32 | token;
}

Ranking::Ranking(std::span<const float> logits, std::span<const float> exponents, std::span<const float> weights,
                 std::vector<uint64_t>& order)
    : logits_(logits), exponents_(exponents), weights_(weights), order_(order) {
  order_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    const size_t portion = portion_of(i);
    ++counts_[portion];
    masses_[portion] += weights_[i];
  }
}

// Four portions for each factor of two: small enough that sorting a few more tokens than needed costs little.
size_t Ranking::portion_of(size_t token) const {
  return std::min(static_cast<size_t>(exponents_[token] * -4.0f), kPortions - 1);
}

void Ranking::take(size_t end_portion) {
  const size_t old_size = order_.size();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    const size_t portion = portion_of(i);
    if (portion >= next_portion_ && portion < end_portion) order_.push_back(rank_key(logits_[i], i));
  }
  std::sort(order_.begin() + static_cast<ptrdiff_t>(old_size), order_.end());
  next_portion_ = end_portion;
}

void Ranking::keep_best(size_t count) {
  size_t end = 0;
  for (size_t seen = 0; end < kPortions && seen < count; ++end) seen += counts_[end];
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] != 0 && portion_of(i) < end) order_.push_back(rank_key(logits_[i], i));
  }
  if (count < order_.size()) {
    const auto last = order_.begin() + static_cast<ptrdiff_t>(count) - 1;
    std::nth_element(order_.begin(), last, order_.end());
    const uint64_t last_logit = *last >> 32;
    order_.erase(std::remove_if(order_.begin(), order_.end(), [&](uint64_t key) { return key >> 32 > last_logit; }),
                 order_.end());
  }
  std::sort(order_.begin(), order_.end());
  next_portion_ = kPortions;
}

void Ranking::expect_mass(double mass) {
  size_t end = 0;
  for (double sum = 0; end < kPortions && sum <= mass * 1.0001; ++end) sum += static_cast<double>(masses_[end]);
  if (end > next_portion_) take(end);
}

bool Ranking::has(size_t rank) {
  if (rank < order_.size()) return true;
  if (next_portion_ < kPortions) take(kPortions);
  return rank < order_.size();
}

}  // namespace tandem::sampling
