#include "compute/sampling/softmax.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/exp2.h"
#include "compute/sampling/philox.h"

namespace tandem::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(size_t count, uint64_t seed, float scale) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = (uniform_at(seed, static_cast<uint32_t>(i), 0) - 0.5f) * scale;
  }
  return values;
}

TEST_CASE("exp2 of the contract: exact at whole numbers, close elsewhere, 0 below -126") {
  CHECK(exp2_contract(0.0f) == 1.0f);
  for (int n = -126; n < 128; ++n) CHECK(exp2_contract(static_cast<float>(n)) == std::ldexp(1.0f, n));
  for (float x = -126.0f; x < 127.5f; x += 0.037f) {
    const double exact = std::exp2(static_cast<double>(x));
    CHECK(std::fabs(exp2_contract(x) - exact) <= 1.6e-7 * exact);
  }
  CHECK(exp2_contract(-126.001f) == 0.0f);
  CHECK(exp2_contract(-kInfinity) == 0.0f);
  CHECK(exp2_contract(128.0f) == kInfinity);
  CHECK(exp2_contract(1e30f) == kInfinity);
}

TEST_CASE("vector and plain weights are equal bit for bit, at every length") {
  for (const float temperature : {1.0f, 0.7f, 1e-4f, 13.0f}) {
    for (size_t count : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{4099}}) {
      std::vector<float> x = random_logits(count, 11, 200.0f);
      if (count > 4) x[3] = -kInfinity;
      const auto max = checked_max(x);
      REQUIRE(bool(max));
      std::vector<float> t(count), w(count), plain_t(count), plain_w(count);
      softmax_weights(x, max.value(), temperature, t, w);
      softmax_weights_plain(x, max.value(), temperature, plain_t, plain_w);
      CHECK(std::memcmp(t.data(), plain_t.data(), count * sizeof(float)) == 0);
      CHECK(std::memcmp(w.data(), plain_w.data(), count * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("checked_max finds the largest and refuses rows that can choose no token") {
  std::vector<float> x = random_logits(1000, 5, 10.0f);
  for (const size_t at : {0, 15, 16, 997, 999}) {
    std::vector<float> y = x;
    y[at] = 77.0f;
    CHECK(checked_max(y).value() == 77.0f);
    y[(at + 1) % y.size()] = -kInfinity;
    CHECK(checked_max(y).value() == 77.0f);
    y[at] = kNaN;
    CHECK_FALSE(bool(checked_max(y)));
    y[at] = -kNaN;
    CHECK_FALSE(bool(checked_max(y)));
    y[at] = kInfinity;
    CHECK_FALSE(bool(checked_max(y)));
  }
  CHECK_FALSE(bool(checked_max(std::vector<float>(20, -kInfinity))));
  CHECK_FALSE(bool(checked_max({})));
}

TEST_CASE("vocabulary_sum follows the contract's order") {
  // Written out from the contract's words: segments, lanes by index within the segment, halving, then the tree.
  for (const size_t count : {size_t{160}, size_t{49152}, size_t{1000}, size_t{3}}) {
    const std::vector<float> values = random_logits(count, 3, 2.0f);
    const size_t length = (count + 15) / 16;
    std::vector<float> sums(16, 0.0f);
    for (size_t s = 0; s < 16; ++s) {
      std::vector<float> lanes(16, 0.0f);
      for (size_t i = 0; i < length && s * length + i < count; ++i) lanes[i % 16] += values[s * length + i];
      for (size_t half : {8, 4, 2, 1}) {
        for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
      }
      sums[s] = lanes[0];
    }
    while (sums.size() > 1) {
      std::vector<float> next;
      for (size_t k = 0; k < sums.size(); k += 2) next.push_back(sums[k] + sums[k + 1]);
      sums = next;
    }
    CHECK(vocabulary_sum(values) == sums[0]);
  }
}

}  // namespace
}  // namespace tandem::sampling
