#include "serve/cost/step_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"

namespace tandem::cost {
namespace {

constexpr size_t kNumTerms = StepCost::kNumTerms;
using Terms = StepCost::Terms;
using Matrix = std::array<Terms, kNumTerms>;

// Attended positions are counted in thousands, so that all sums have like magnitudes.
constexpr double kAttendedUnit = 1e-3;

Terms terms_of(const StepShape& shape) {
  return {1.0, static_cast<double>(shape.num_prefill_tokens), static_cast<double>(shape.num_decode_rows),
          static_cast<double>(shape.prefill_attended) * kAttendedUnit,
          static_cast<double>(shape.decode_attended) * kAttendedUnit};
}

double dot(const Terms& a, const Terms& b) {
  double sum = 0;
  for (size_t i = 0; i < kNumTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// Solves for the terms of `subset` alone (the others 0), by elimination. Nothing when not solvable.
std::optional<Terms> solve(Matrix gram, Terms moment, uint32_t subset) {
  std::array<size_t, kNumTerms> used{};
  size_t n = 0;
  for (size_t i = 0; i < kNumTerms; ++i) {
    if (subset >> i & 1) used[n++] = i;
  }
  for (size_t k = 0; k < n; ++k) {
    const double pivot = gram[used[k]][used[k]];
    if (!(pivot > 1e-300)) return std::nullopt;
    for (size_t r = k + 1; r < n; ++r) {
      const double factor = gram[used[r]][used[k]] / pivot;
      for (size_t c = k; c < n; ++c) gram[used[r]][used[c]] -= factor * gram[used[k]][used[c]];
      moment[used[r]] -= factor * moment[used[k]];
    }
  }
  Terms solution{};
  for (size_t k = n; k-- > 0;) {
    double sum = moment[used[k]];
    for (size_t c = k + 1; c < n; ++c) sum -= gram[used[k]][used[c]] * solution[used[c]];
    solution[used[k]] = sum / gram[used[k]][used[k]];
    if (!(solution[used[k]] >= 0) || !std::isfinite(solution[used[k]])) return std::nullopt;
  }
  return solution;
}

}  // namespace

StepCost::StepCost(double memory) : memory_(memory) { TANDEM_CHECK(memory > 0 && memory <= 1); }

double StepCost::predict(const StepShape& shape) const {
  if (shape.is_empty()) return 0;
  return dot(terms_of(shape), coefficients_);
}

void StepCost::observe(const StepShape& shape, double seconds) {
  if (shape.is_empty() || !(seconds > 0) || !std::isfinite(seconds)) return;
  double weight = 1;
  if (num_observed_ > 0) {
    const double error = std::abs(predict(shape) - seconds) / seconds;
    // A step far off the usual error (the machine was busy, a page came from disk) is bent to what a step at the
    // limit would weigh (Huber); a true change of speed still gets through, since it comes with every step.
    const double limit = std::max(3 * relative_error_, 0.05);
    if (is_ready() && error > limit) weight = limit / error;
    const double share = std::max(0.02, 1.0 / static_cast<double>(num_observed_));
    relative_error_ += share * (std::min(error, 10.0) - relative_error_);
  }
  Terms row = terms_of(shape);
  for (double& value : row) value /= seconds;
  for (size_t i = 0; i < kNumTerms; ++i) {
    for (size_t j = 0; j < kNumTerms; ++j) gram_[i][j] = memory_ * gram_[i][j] + weight * row[i] * row[j];
    moment_[i] = memory_ * moment_[i] + weight * row[i];
  }
  ++num_observed_;
  refit();
}

// Non-negative least squares, exactly: of all 31 subsets of terms, the best whose solution is not negative. Five terms
// make that cheaper than an active-set method is long.
void StepCost::refit() {
  Matrix gram = gram_;
  for (size_t i = 0; i < kNumTerms; ++i) gram[i][i] *= 1 + 1e-9;
  double best_gain = 0;
  for (uint32_t subset = 1; subset < (1u << kNumTerms); ++subset) {
    const auto solution = solve(gram, moment_, subset);
    if (!solution) continue;
    const double gain = dot(*solution, moment_);  // how much of the squared error this solution explains
    if (gain <= best_gain) continue;
    best_gain = gain;
    coefficients_ = *solution;
  }
}

std::string StepCost::dump() const {
  std::string text = "cost: steps=" + std::to_string(num_observed_) +
                     " relative_error=" + std::to_string(relative_error_) + " us:";
  const char* names[kNumTerms] = {"step", "prefill_token", "decode_row", "prefill_attended_k", "decode_attended_k"};
  for (size_t i = 0; i < kNumTerms; ++i) {
    text += std::string(" ") + names[i] + "=" + std::to_string(coefficients_[i] * 1e6);
  }
  return text + "\n";
}

}  // namespace tandem::cost
