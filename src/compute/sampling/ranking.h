#pragma once
// Ranking: the tokens of a row by (logit down, id up), sorted only as far as somebody looks. Borrows all it is given;
// lives for one call.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"

namespace tandem::sampling {

// (logit down, id up) as one integer in rising order. -0 and +0 are equal.
uint64_t rank_key(float logit, size_t token);
inline TokenId token_of(uint64_t key) { return static_cast<TokenId>(key & 0xffffffff); }

class Ranking {
 public:
  // Tokens whose weight is 0 are not in play. `exponents` falls with the logit; it decides in how fine portions
  // tokens are sorted. `order` is working memory.
  Ranking(std::span<const float> logits, std::span<const float> exponents, std::span<const float> weights,
          std::vector<uint64_t>& order);

  // Leaves the `count` best in play, with all that equal the last of them. Call before anything else.
  void keep_best(size_t count);

  // Sorts so many that their weights probably reach `mass`. A hint: has() goes on where it was too few.
  void expect_mass(double mass);

  // Whether there is a token of that rank (0: the best). Sorts more when needed.
  bool has(size_t rank);

  TokenId token(size_t rank) const { return token_of(order_[rank]); }

 private:
  static constexpr size_t kPortions = 512;

  size_t portion_of(size_t token) const;
  void take(size_t end_portion);  // appends the tokens of all portions before it

  std::span<const float> logits_;
  std::span<const float> exponents_;
  std::span<const float> weights_;
  std::vector<uint64_t>& order_;
  size_t next_portion_ = 0;
  uint32_t counts_[kPortions] = {};
  float masses_[kPortions] = {};
};

}  // namespace tandem::sampling
