#include "serve/cost/step_cost.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

namespace tandem::cost {
namespace {

// The machine the tests fit: seconds as an exact function of the shape.
double true_seconds(const StepShape& s, double slowness = 1) {
  return slowness * (2e-3 + 40e-6 * static_cast<double>(s.num_prefill_tokens) +
                     300e-6 * static_cast<double>(s.num_decode_rows) +
                     5e-9 * static_cast<double>(s.prefill_attended) + 80e-9 * static_cast<double>(s.decode_attended));
}

StepShape random_shape(std::mt19937& random) {
  StepShape shape;
  const uint32_t num_rows = random() % 16;
  for (uint32_t i = 0; i < num_rows; ++i) shape.add_decode(random() % 4096);
  if (random() % 2 || num_rows == 0) shape.add_prefill(random() % 4096, 1 + random() % 512);
  return shape;
}

TEST_CASE("attended positions are counted as causal attention reads them") {
  StepShape shape;
  shape.add_prefill(0, 4);
  CHECK(shape.prefill_attended == 1 + 2 + 3 + 4);
  shape.add_prefill(10, 2);
  CHECK(shape.prefill_attended == 10 + 11 + 12);
  CHECK(shape.num_prefill_tokens == 6);
  shape.add_decode(7);
  CHECK(shape.decode_attended == 8);
}

TEST_CASE("it finds the coefficients of an exact machine") {
  std::mt19937 random(1);
  StepCost cost;
  CHECK(cost.predict({100, 0, 5000, 0}) == 0);
  for (int i = 0; i < 300; ++i) {
    const StepShape shape = random_shape(random);
    cost.observe(shape, true_seconds(shape));
  }
  for (int i = 0; i < 50; ++i) {
    const StepShape shape = random_shape(random);
    CHECK(cost.predict(shape) == doctest::Approx(true_seconds(shape)).epsilon(1e-3));
  }
  CHECK(cost.is_ready());
  CHECK(cost.relative_error() < 0.02);
  CHECK(cost.coefficients()[1] == doctest::Approx(40e-6).epsilon(0.01));
}

TEST_CASE("noise and outliers move it little") {
  std::mt19937 random(2);
  std::normal_distribution<double> noise(1, 0.05);
  StepCost cost;
  for (int i = 0; i < 600; ++i) {
    const StepShape shape = random_shape(random);
    const bool is_outlier = i > 50 && i % 20 == 0;
    cost.observe(shape, true_seconds(shape) * std::max(0.5, noise(random)) * (is_outlier ? 30 : 1));
  }
  double error = 0;
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = random_shape(random);
    error += std::abs(cost.predict(shape) / true_seconds(shape) - 1) / 200;
  }
  CHECK(error < 0.05);
}

TEST_CASE("it follows a machine that becomes slower") {
  std::mt19937 random(3);
  StepCost cost(0.98);
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = random_shape(random);
    cost.observe(shape, true_seconds(shape));
  }
  for (int i = 0; i < 600; ++i) {
    const StepShape shape = random_shape(random);
    cost.observe(shape, true_seconds(shape, 2));
  }
  const StepShape shape = random_shape(random);
  CHECK(cost.predict(shape) == doctest::Approx(true_seconds(shape, 2)).epsilon(0.05));
}

TEST_CASE("no coefficient is ever negative, whatever was measured") {
  std::mt19937 random(4);
  for (int run = 0; run < 50; ++run) {
    StepCost cost;
    for (int i = 0; i < 60; ++i) {
      const StepShape shape = random_shape(random);
      cost.observe(shape, 1e-6 * static_cast<double>(1 + random() % 1000000));
      for (const double coefficient : cost.coefficients()) {
        REQUIRE(coefficient >= 0);
        REQUIRE(std::isfinite(coefficient));
      }
    }
  }
}

TEST_CASE("times that cannot be are not learnt") {
  StepCost cost;
  cost.observe({10, 0, 55, 0}, 0);
  cost.observe({10, 0, 55, 0}, -1);
  cost.observe({10, 0, 55, 0}, std::nan(""));
  cost.observe({}, 1);
  CHECK(cost.num_observed() == 0);
}

TEST_CASE("one kind of step is enough to predict that kind") {
  StepCost cost;
  StepShape shape;
  shape.add_decode(100);
  for (int i = 0; i < 20; ++i) cost.observe(shape, 0.010);
  CHECK(cost.predict(shape) == doctest::Approx(0.010).epsilon(1e-3));
}

}  // namespace
}  // namespace tandem::cost
