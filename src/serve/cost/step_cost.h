#pragma once
// StepCost: how long a step takes, from the shape of its batch: a sum of five terms (one fixed, the rest proportional
// to a count), fitted online to the steps themselves. Coefficients are never negative, old steps fade, outliers count
// little. Engine thread; knows no device and no clock.

#include <array>
#include <cstdint>
#include <string>

namespace tandem::cost {

struct StepShape {
  uint64_t num_prefill_tokens = 0;
  uint64_t num_decode_rows = 0;
  uint64_t prefill_attended = 0;  // KV positions read, summed over the prefill tokens
  uint64_t decode_attended = 0;   // the same over the decode rows

  // `count` prompt tokens from position `begin`.
  void add_prefill(uint64_t begin, uint64_t count) {
    num_prefill_tokens += count;
    prefill_attended += count * begin + count * (count + 1) / 2;
  }
  void add_decode(uint64_t position) {
    ++num_decode_rows;
    decode_attended += position + 1;
  }
  bool is_empty() const { return num_prefill_tokens + num_decode_rows == 0; }
};

class StepCost {
 public:
  static constexpr size_t kNumTerms = 5;
  using Terms = std::array<double, kNumTerms>;

  // What fraction of a step's weight is left after each later step.
  explicit StepCost(double memory = 0.995);

  // Seconds. 0 until anything was observed.
  double predict(const StepShape& shape) const;

  void observe(const StepShape& shape, double seconds);

  // Enough steps seen to decide by.
  bool is_ready() const { return num_observed_ >= kMinObserved; }
  uint64_t num_observed() const { return num_observed_; }

  // Smoothed |predicted - measured| / measured of steps, each predicted before it was learnt from.
  double relative_error() const { return relative_error_; }

  // Seconds: per step, prefill token, decode row, position attended by prefill, by decode.
  const Terms& coefficients() const { return coefficients_; }
  std::string dump() const;

 private:
  static constexpr uint64_t kMinObserved = 8;

  void refit();

  double memory_;
  uint64_t num_observed_ = 0;
  double relative_error_ = 0;
  std::array<Terms, kNumTerms> gram_{};  // faded sums of x x^T and x y, for relative errors: rows divided by seconds
  Terms moment_{};
  Terms coefficients_{};
};

}  // namespace tandem::cost
