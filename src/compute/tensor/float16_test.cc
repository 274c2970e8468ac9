#include "compute/tensor/float16.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>

using namespace tandem::tensor;

namespace {

// The definition: sign, exponent and fraction of IEEE 754 binary16, in double.
double value_of_f16(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

bool is_nan_f16(uint16_t half) { return (half & 0x7C00) == 0x7C00 && (half & 0x03FF) != 0; }

// All finite values of one sign are ordered as their bits, so the nearest is one of two neighbours; even bits win ties.
uint16_t nearest_bf16(double value) {
  uint16_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  const auto near = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  for (int step = 0; step <= 1; ++step) {
    const auto candidate = static_cast<uint16_t>(near + step);
    const double distance = std::fabs(double{f32_from_bf16(candidate)} - value);
    if (distance < best_distance || (distance == best_distance && candidate % 2 == 0)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

TEST_CASE("float16: all 65536 halves widen exactly and come back") {
  int wrong = 0;
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float wide = f32_from_f16(half);
    if (is_nan_f16(half)) {
      wrong += !std::isnan(wide) || !is_nan_f16(f16_from_f32(wide));
    } else if ((half & 0x7C00) == 0x7C00) {
      wrong += !std::isinf(wide) || f16_from_f32(wide) != half;
    } else {
      wrong += double{wide} != value_of_f16(half) || std::signbit(wide) != ((half & 0x8000) != 0);
      wrong += f16_from_f32(wide) != half;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("float16: the middle between neighbours rounds to even, just beside it to the nearer one") {
  int wrong = 0;
  for (uint16_t half = 0; half < 0x7BFF; ++half) {
    const auto middle = static_cast<float>((value_of_f16(half) + value_of_f16(half + 1)) / 2);  // exact
    const auto even = static_cast<uint16_t>(half % 2 == 0 ? half : half + 1);
    wrong += f16_from_f32(middle) != even;
    wrong += f16_from_f32(-middle) != (even | 0x8000);
    wrong += f16_from_f32(std::nextafterf(middle, 0.0f)) != half;
    wrong += f16_from_f32(std::nextafterf(middle, 1e9f)) != half + 1;
  }
  CHECK(wrong == 0);
  CHECK(f16_from_f32(65519.996f) == 0x7BFF);
  CHECK(f16_from_f32(65520.0f) == 0x7C00);
  CHECK(f16_from_f32(1e-30f) == 0);
  CHECK(f16_from_f32(-1e-30f) == 0x8000);
}

TEST_CASE("float16: bf16 rounds to nearest even") {
  CHECK(f32_from_bf16(0x3F80) == 1.0f);
  CHECK(bf16_from_f32(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(std::isnan(f32_from_bf16(bf16_from_f32(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(std::isnan(f32_from_bf16(bf16_from_f32(std::bit_cast<float>(0x7F800001u)))));
  CHECK(bf16_from_f32(-0.0f) == 0x8000);
  int wrong = 0;
  for (uint32_t bits = 0; bits < 0x7F000000u; bits += 32768 - 1) {  // crosses middles, exact values and all between
    const auto value = std::bit_cast<float>(bits);
    wrong += bf16_from_f32(value) != nearest_bf16(value);
  }
  for (uint32_t high = 0; high < 0x7F00; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const auto value = std::bit_cast<float>(high << 16 | low);
      wrong += bf16_from_f32(value) != nearest_bf16(value);
    }
  }
  CHECK(wrong == 0);
}
