#include "compute/kernels/element_kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compute/kernels/denormals_off.h"
#include "compute/kernels/embed_row.h"
#include "compute/kernels/exp2_isa.h"
#include "compute/kernels/fingerprint.h"
#include "compute/kernels/linear_samples.h"
#include "compute/kernels/log_sum_exp.h"
#include "compute/tensor/float16.h"

namespace tandem::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct ElementVariant {
  const char* name;
  ElementKernels kernels;
};

// All tables but the scalar one that can run here.
std::vector<ElementVariant> variants_under_test() {
  std::vector<ElementVariant> variants;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (is_supported(isa)) variants.push_back({isa_name(isa).data(), element_kernels(isa)});
  }
#ifdef TANDEM_HAS_SIMDE
  variants.push_back({"avx512 by simde", element_kernels(Isa::kAvx2)});
  variants.back().kernels.rms_norm = tk_rms_norm_avx512_simde;
  variants.back().kernels.silu_mul = tk_silu_mul_avx512_simde;
  variants.back().kernels.sum_exp = tk_sum_exp_avx512_simde;
#endif
  return variants;
}

const ElementKernels& reference() { return element_kernels(Isa::kScalar); }

std::vector<float> random_floats(uint64_t seed, size_t n, float limit) {
  SampleRandom random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = (2.0f * random.unit() - 1.0f) * limit;
  return x;
}

bool have_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr uint32_t kSizes[] = {1, 5, 8, 15, 16, 17, 31, 64, 77, 100, 576, 1000, 2049};

}  // namespace

TEST_CASE("exp2 against double") {
  const DenormalsOff denormals_off;
  CHECK(tk_exp2(0.0f) == 1.0f);
  CHECK(tk_exp2(-0.0f) == 1.0f);
  CHECK(tk_exp2(-126.0f) == 0x1p-126f);
  CHECK(tk_exp2(std::nextafter(-126.0f, -200.0f)) == 0.0f);
  CHECK(tk_exp2(-kInfinity) == 0.0f);
  CHECK(tk_exp2(kNan) == 0.0f);
  CHECK(tk_exp2(127.0f) == 0x1p127f);
  CHECK(tk_exp2(std::nextafter(128.0f, 0.0f)) < kInfinity);
  CHECK(tk_exp2(128.0f) == kInfinity);
  CHECK(tk_exp2(1e30f) == kInfinity);
  double worst = 0;
  for (int i = 0; i <= 1260000; ++i) {
    const float x = -126.0f + static_cast<float>(i) * 1e-4f;
    if (x > 0) break;
    const double exact = std::exp2(double{x});
    worst = std::max(worst, std::abs(tk_exp2(x) / exact - 1));
  }
  MESSAGE("exp2: largest relative error ", worst);
  CHECK(worst < 2.0e-7);
  for (int n = -126; n <= 127; ++n) CHECK(tk_exp2(static_cast<float>(n)) == std::ldexp(1.0f, n));
}

TEST_CASE("all instruction sets: norms, SiLU, rope and sums have the bits of the reference") {
  const DenormalsOff denormals_off;
  for (const ElementVariant& variant : variants_under_test()) {
    for (uint32_t n : kSizes) {
      INFO(variant.name, " n ", n);
      std::vector<float> x = random_floats(n, n, 100.0f);
      x[n / 2] = 0x1p-130f;  // a denormal is zero everywhere
      const std::vector<float> weight = random_floats(n + 1, n, 2.0f);
      std::vector<float> expected(n), actual(n);
      reference().rms_norm(n, 1e-6f, x.data(), weight.data(), expected.data());
      variant.kernels.rms_norm(n, 1e-6f, x.data(), weight.data(), actual.data());
      CHECK(have_same_bits(actual, expected));
      reference().silu_mul(n, x.data(), weight.data(), expected.data());
      variant.kernels.silu_mul(n, x.data(), weight.data(), actual.data());
      CHECK(have_same_bits(actual, expected));
      x[0] = -kInfinity;
      const float sums[] = {reference().sum_exp(n, x.data(), 99.0f), variant.kernels.sum_exp(n, x.data(), 99.0f)};
      CHECK(std::bit_cast<uint32_t>(sums[0]) == std::bit_cast<uint32_t>(sums[1]));
    }
    std::vector<float> grid;
    for (int i = -3000; i <= 3000; ++i) grid.push_back(static_cast<float>(i) * 0.05f);
    grid.insert(grid.end(), {kInfinity, -kInfinity, 3e38f, -3e38f, -0.0f, 0.0f, 1e-38f, -87.4f, 88.8f, -88.8f, 1.0f});
    const std::vector<float> ones(grid.size(), 1.0f);
    std::vector<float> expected(grid.size()), actual(grid.size());
    reference().silu_mul(static_cast<uint32_t>(grid.size()), grid.data(), ones.data(), expected.data());
    variant.kernels.silu_mul(static_cast<uint32_t>(grid.size()), grid.data(), ones.data(), actual.data());
    CHECK(have_same_bits(actual, expected));
    for (uint32_t rotary_dim : {2u, 8u, 22u, 32u, 80u, 128u}) {
      for (uint32_t pairing : {TK_ROPE_ADJACENT, TK_ROPE_HALVES}) {
        const tk_rope shape = {128, rotary_dim, pairing};
        const std::vector<float> table = random_floats(rotary_dim, rotary_dim, 1.0f);
        const std::vector<float> in = random_floats(3, 128, 5.0f);
        std::vector<float> rotated(128);
        std::vector<float> in_place = in;
        reference().rope(&shape, table.data(), in.data(), rotated.data());
        variant.kernels.rope(&shape, table.data(), in_place.data(), in_place.data());
        INFO(variant.name, " rotary ", rotary_dim, " pairing ", pairing);
        CHECK(have_same_bits(in_place, rotated));
      }
    }
  }
}

TEST_CASE("RMSNorm against double") {
  const DenormalsOff denormals_off;
  for (uint32_t n : {5u, 64u, 576u, 4096u}) {
    const std::vector<float> x = random_floats(n, n, 3.0f);
    const std::vector<float> weight = random_floats(n + 1, n, 2.0f);
    double sum = 0;
    for (float value : x) sum += double{value} * value;
    const double r = 1.0 / std::sqrt(sum / n + double{1e-5f});
    std::vector<float> out(n);
    reference().rms_norm(n, 1e-5f, x.data(), weight.data(), out.data());
    for (uint32_t i = 0; i < n; ++i) CHECK(out[i] == doctest::Approx(x[i] * r * weight[i]).epsilon(1e-6));
  }
}

TEST_CASE("SiLU against double") {
  const DenormalsOff denormals_off;
  for (float x = -80.0f; x < 80.0f; x += 0.037f) {
    // The rounding of x * log2 e is most of the error.
    CHECK(tk_silu(x) == doctest::Approx(x / (1 + std::exp(-double{x}))).epsilon(2e-5));
  }
  CHECK(tk_silu(0.0f) == 0.0f);
  CHECK(tk_silu(-1000.0f) == 0.0f);
  CHECK(tk_silu(1000.0f) == 1000.0f);
  CHECK(std::isnan(tk_silu(kNan)));
}

TEST_CASE("rope turns pairs by the angle of their frequency and keeps the rest") {
  const DenormalsOff denormals_off;
  constexpr uint32_t kRotary = 48;
  std::vector<double> frequencies;
  for (uint32_t i = 0; i < kRotary / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / kRotary));
  std::vector<float> table;  // by position: all cosines, then all sines
  for (uint32_t position = 0; position <= 100; ++position) {
    for (double frequency : frequencies) table.push_back(static_cast<float>(std::cos(position * frequency)));
    for (double frequency : frequencies) table.push_back(static_cast<float>(std::sin(position * frequency)));
  }
  const std::vector<float> in = random_floats(5, 64, 3.0f);
  for (uint32_t position : {0u, 1u, 100u}) {
    for (uint32_t pairing : {TK_ROPE_ADJACENT, TK_ROPE_HALVES}) {
      const tk_rope shape = {64, kRotary, pairing};
      std::vector<float> out(64);
      reference().rope(&shape, table.data() + size_t{position} * kRotary, in.data(), out.data());
      for (uint32_t i = 0; i < kRotary / 2; ++i) {
        const uint32_t first = pairing == TK_ROPE_ADJACENT ? 2 * i : i;
        const uint32_t second = pairing == TK_ROPE_ADJACENT ? 2 * i + 1 : i + kRotary / 2;
        const double angle = position * frequencies[i];
        CHECK(std::abs(out[first] - (in[first] * std::cos(angle) - in[second] * std::sin(angle))) < 1e-6);
        CHECK(std::abs(out[second] - (in[first] * std::sin(angle) + in[second] * std::cos(angle))) < 1e-6);
      }
      for (uint32_t i = kRotary; i < 64; ++i) CHECK(out[i] == in[i]);
      if (position == 0) CHECK(have_same_bits(out, in));
    }
  }
}

TEST_CASE("argmax takes the lowest id of the largest and says what is not valid") {
  std::vector<ElementVariant> variants = variants_under_test();
  variants.push_back({"scalar", reference()});
  for (const ElementVariant& variant : variants) {
    INFO(variant.name);
    for (uint32_t n : kSizes) {
      std::vector<float> x = random_floats(n, n, 10.0f);
      const auto largest = static_cast<uint32_t>(std::max_element(x.begin(), x.end()) - x.begin());
      tk_argmax best = variant.kernels.argmax(n, x.data());
      CHECK(best.index == largest);
      CHECK(best.value == x[largest]);
      CHECK(best.is_valid);
      x[n - 1] = x[n / 2] = x[n / 3] = 20.0f;
      CHECK(variant.kernels.argmax(n, x.data()).index == n / 3);
      std::fill(x.begin(), x.end(), -kInfinity);
      CHECK_FALSE(variant.kernels.argmax(n, x.data()).is_valid);
      x[n / 2] = -3.0f;
      best = variant.kernels.argmax(n, x.data());
      CHECK(best.index == n / 2);
      CHECK(best.is_valid);
      for (float bad : {kNan, kInfinity}) {
        for (uint32_t at : {0u, n / 2, n - 1}) {
          std::vector<float> y = random_floats(n, n, 10.0f);
          y[at] = bad;
          CHECK_FALSE(variant.kernels.argmax(n, y.data()).is_valid);
        }
      }
    }
  }
}

TEST_CASE("log-sum-exp against double, for sizes that 16 does not divide too") {
  const DenormalsOff denormals_off;
  for (uint32_t n : {1u, 3u, 16u, 250u, 511u, 49152u}) {
    std::vector<float> x = random_floats(n, n, 12.0f);
    double sum = 0;
    for (float value : x) sum += std::exp(double{value});
    CHECK(log_sum_exp(reference(), n, x.data()) == doctest::Approx(std::log(sum)).epsilon(1e-6));
    for (const ElementVariant& variant : variants_under_test()) {
      CHECK(log_sum_exp(variant.kernels, n, x.data()) == log_sum_exp(reference(), n, x.data()));
    }
    x[n / 2] = kNan;
    CHECK(std::isnan(log_sum_exp(reference(), n, x.data())));
  }
  // A rank that holds half of the segments finds its subtree's sums by itself.
  const std::vector<float> x = random_floats(9, 1000, 5.0f);
  float all[kVocabularySegments];
  segment_sums(reference(), 1000, x.data(), 5.0f, all);
  CHECK(vocabulary_segment_size(1000) == 63);
  CHECK(all[8] == reference().sum_exp(63, x.data() + 8 * 63, 5.0f));
  CHECK(all[15] == reference().sum_exp(1000 - 15 * 63, x.data() + 15 * 63, 5.0f));
}

TEST_CASE("the portable logarithm") {
  for (double x = 1.0; x < 1e6; x *= 1.00371) {
    CHECK(std::abs(portable_log(x) - std::log(x)) <= 4e-16 * std::max(1.0, std::log(x)));
  }
  CHECK(portable_log(1.0) == 0.0);
}

TEST_CASE("embedding rows are the dequantised weights") {
  const uint16_t matrix[3][2] = {{0x3F80, 0x4000}, {0xC040, 0x0000}, {0x3F00, 0x4080}};
  float out[2];
  embed_row(tensor::DType::kBF16, matrix, 1, 2, out);
  CHECK(out[0] == -3.0f);
  CHECK(out[1] == 0.0f);
  embed_row(tensor::DType::kBF16, matrix, 2, 2, out);
  CHECK(out[0] == 0.5f);
  CHECK(out[1] == 4.0f);
}

TEST_CASE("the fingerprint's part is the same for every instruction set") {
  const std::string scalar = attention_digest(Isa::kScalar);
  CHECK(scalar.size() == 32);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (is_supported(isa)) CHECK(attention_digest(isa) == scalar);
  }
}

}  // namespace tandem::kernels
