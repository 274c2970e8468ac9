#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "compute/kernels/denormals_off.h"
#include "compute/kernels/fingerprint.h"
#include "compute/kernels/linear.h"
#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/linear_samples.h"
#include "compute/tensor/float16.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

// Every table but the scalar one that can run here.
std::vector<LinearKernels> kernels_under_test() {
  std::vector<LinearKernels> tables;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (is_supported(isa)) tables.push_back(linear_kernels(isa));
  }
#ifdef TANDEM_HAS_SIMDE
  tables.push_back({{}, tk_linear_epilogue_avx512_simde, tk_quantize_avx512_simde});
#endif
  return tables;
}

std::vector<LinearKernels> all_kernels() {
  std::vector<LinearKernels> tables = kernels_under_test();
  tables.push_back(linear_kernels(Isa::kScalar));
  return tables;
}

const LinearKernels& reference() { return linear_kernels(Isa::kScalar); }

// Rows of `kind` made from x, every byte that no kernel writes left at 0xA5.
std::vector<uint8_t> quantized(const LinearKernels& kernels, const std::vector<float>& x, uint32_t k, uint8_t kind) {
  const auto num_rows = static_cast<uint32_t>(x.size() / k);
  const uint64_t stride = tk_activation_row_bytes(kind, k) + 64;
  std::vector<uint8_t> out(stride * num_rows, 0xA5);
  const tk_quantize quantize{x.data(), 4ull * k, out.data(), stride, k, kind};
  kernels.quantize(&quantize, 0, num_rows);
  return out;
}

struct Q8Row {
  std::vector<int8_t> q;
  std::vector<float> scales;
  std::vector<int16_t> sums;
};

Q8Row quantize_one(const LinearKernels& kernels, const std::vector<float>& x) {
  const auto k = static_cast<uint32_t>(x.size());
  std::vector<uint8_t> row(tk_activation_row_bytes(TK_ROWS_Q8, k));
  const tk_quantize quantize{x.data(), 4ull * k, row.data(), row.size(), k, TK_ROWS_Q8};
  kernels.quantize(&quantize, 0, 1);
  Q8Row out;
  out.q.assign(reinterpret_cast<int8_t*>(row.data()), reinterpret_cast<int8_t*>(row.data()) + k);
  out.scales.assign(tk_q8_scales(row.data(), k), tk_q8_scales(row.data(), k) + k / 32);
  out.sums.assign(tk_q8_sums(row.data(), k), tk_q8_sums(row.data(), k) + k / 16);
  return out;
}

}  // namespace

TEST_CASE("quantised rows follow the contract") {
  const DenormalsOff denormals_off;
  SampleRandom random(4);
  for (int n = 0; n < 200; ++n) {
    const std::vector<float> x = sample_rows(1, 96, random);
    const Q8Row row = quantize_one(reference(), x);
    for (uint32_t b = 0; b < 3; ++b) {
      float largest = 0.0f;
      for (uint32_t i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[32 * b + i]));
      CHECK(row.scales[b] == largest / 127.0f);
      const float inverse = row.scales[b] == 0.0f ? 0.0f : 127.0f / largest;
      int sums[2] = {0, 0};
      for (uint32_t i = 0; i < 32; ++i) {
        CHECK(row.q[32 * b + i] == static_cast<int>(std::nearbyint(x[32 * b + i] * inverse)));
        sums[i / 16] += row.q[32 * b + i];
      }
      CHECK(row.sums[2 * b] == sums[0]);
      CHECK(row.sums[2 * b + 1] == sums[1]);
    }
  }
}

TEST_CASE("quantisation of extreme blocks") {
  const DenormalsOff denormals_off;
  std::vector<float> x(32, 0.0f);
  const auto check = [&](float expected_scale, int8_t expected_first) {
    for (const LinearKernels& kernels : all_kernels()) {
      const Q8Row row = quantize_one(kernels, x);
      CHECK(row.scales[0] == expected_scale);
      CHECK(row.q[0] == expected_first);
      CHECK(row.q[31] == 0);
    }
  };
  check(0.0f, 0);
  x[0] = std::numeric_limits<float>::max();
  check(std::numeric_limits<float>::max() / 127.0f, 127);
  x[0] = -1.0f;
  check(1.0f / 127.0f, -127);
  x[0] = 1e-37f;  // its scale would be denormal
  check(0.0f, 0);
  x[0] = 1e-40f;  // denormal itself
  check(0.0f, 0);
}

TEST_CASE("what is not finite reaches the scale") {
  const DenormalsOff denormals_off;
  for (const LinearKernels& kernels : all_kernels()) {
    std::vector<float> x(64, 1.0f);
    x[3] = std::numeric_limits<float>::infinity();
    Q8Row row = quantize_one(kernels, x);
    CHECK(std::isinf(row.scales[0]));
    CHECK(row.scales[1] == 1.0f / 127.0f);
    x[3] = std::numeric_limits<float>::quiet_NaN();
    row = quantize_one(kernels, x);
    CHECK(std::isnan(row.scales[0]));
    CHECK(row.scales[1] == 1.0f / 127.0f);
  }
}

TEST_CASE("bf16 rows are rounded to nearest even and padded to pairs") {
  const DenormalsOff denormals_off;
  std::vector<float> x(67);
  for (uint32_t i = 0; i < 67; ++i) x[i] = std::bit_cast<float>(0x3F800000u + i * 0x4000u);  // every half is a tie
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[6] = -std::numeric_limits<float>::infinity();
  x[7] = 1e-40f;
  for (const LinearKernels& kernels : all_kernels()) {
    const std::vector<uint8_t> row = quantized(kernels, x, 67, TK_ROWS_BF16);
    const auto* values = reinterpret_cast<const uint16_t*>(row.data());
    for (uint32_t i = 0; i < 67; ++i) CHECK(values[i] == tensor::bf16_from_f32(x[i]));
    CHECK(values[67] == 0);
    CHECK(row[2 * 68] == 0xA5);
  }
}

TEST_CASE("quantised rows have the scalar bits, and nothing else is written") {
  const DenormalsOff denormals_off;
  for (const LinearKernels& kernels : kernels_under_test()) {
    SampleRandom random(7);
    for (uint32_t k : {32u, 64u, 576u, 1536u}) {
      const std::vector<float> x = sample_rows(9, k, random);
      for (uint8_t kind : {TK_ROWS_F32, TK_ROWS_BF16, TK_ROWS_Q8}) {
        CHECK(quantized(kernels, x, k, kind) == quantized(reference(), x, k, kind));
      }
    }
    const std::vector<float> x = sample_rows(3, 45, random);
    for (uint8_t kind : {TK_ROWS_F32, TK_ROWS_BF16}) {
      CHECK(quantized(kernels, x, 45, kind) == quantized(reference(), x, 45, kind));
    }
  }
}

namespace {

// One epilogue over 3 rows of a tile of 5, written to columns 32 .. of a wider output.
struct EpilogueCase {
  bool has_bias;
  bool is_gated;
  bool has_up_bias;
  bool has_residual;
  uint8_t out_kind;
  uint32_t num_columns;
};

struct EpilogueInput {
  std::vector<float> gate;
  std::vector<float> up;
  std::vector<float> bias;
  std::vector<float> up_bias;
  std::vector<float> residual;  // rows of 96
};

EpilogueInput make_input() {
  SampleRandom random(21);
  return {sample_rows(5, 32, random), sample_rows(5, 40, random), sample_rows(1, 96, random),
          sample_rows(1, 96, random), sample_rows(6, 96, random)};
}

std::vector<uint8_t> run_epilogue(const LinearKernels& kernels, EpilogueInput input, const EpilogueCase& c) {
  const uint32_t out_columns = c.num_columns == 32 ? 64 : 32 + c.num_columns;
  const uint64_t stride = tk_activation_row_bytes(c.out_kind, out_columns) + 64;
  std::vector<uint8_t> out(stride * 6, 0xA5);
  const tk_epilogue epilogue{c.has_bias ? input.bias.data() : nullptr,
                             c.has_up_bias ? input.up_bias.data() : nullptr,
                             c.has_residual ? input.residual.data() : nullptr,
                             4 * 96,
                             out.data(),
                             stride,
                             out_columns,
                             c.out_kind,
                             static_cast<uint8_t>(c.is_gated ? TK_ACTIVATION_SILU_GATE : TK_ACTIVATION_NONE)};
  const tk_tile tile{input.gate.data(), 32, 1, 6};
  const tk_tile up{input.up.data(), 40, 1, 6};
  kernels.epilogue(&epilogue, &tile, c.is_gated ? &up : nullptr, 32, c.num_columns);
  return out;
}

std::vector<EpilogueCase> all_cases() {
  std::vector<EpilogueCase> cases;
  for (int bits = 0; bits < 16; ++bits) {
    for (uint8_t out_kind : {TK_ROWS_F32, TK_ROWS_BF16, TK_ROWS_Q8}) {
      for (uint32_t num_columns : {32u, 31u, 8u, 1u}) {
        if (out_kind == TK_ROWS_Q8 && num_columns != 32) continue;
        const EpilogueCase c{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, out_kind, num_columns};
        if (c.has_up_bias && !c.is_gated) continue;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

}  // namespace

TEST_CASE("the scalar epilogue adds, gates and adds again, one rounding each") {
  const DenormalsOff denormals_off;
  const EpilogueInput input = make_input();
  for (const EpilogueCase& c : all_cases()) {
    if (c.out_kind != TK_ROWS_F32) continue;
    const std::vector<uint8_t> out = run_epilogue(reference(), input, c);
    const uint64_t stride = out.size() / 6;
    for (uint32_t r = 1; r < 6; ++r) {
      for (uint32_t i = 0; i < c.num_columns; ++i) {
        float before = input.gate[(r - 1) * 32 + i];
        if (c.has_bias) before = before + input.bias[32 + i];
        double expected = before;
        if (c.is_gated) {
          float other = input.up[(r - 1) * 40 + i];
          if (c.has_up_bias) other = other + input.up_bias[32 + i];
          expected = before / (1.0 + std::exp(-static_cast<double>(before))) * other;
        }
        double size = std::fabs(expected);
        if (c.has_residual) {
          expected += static_cast<double>(input.residual[r * 96 + 32 + i]);
          size += std::fabs(static_cast<double>(input.residual[r * 96 + 32 + i]));
        }
        float value;
        memcpy(&value, out.data() + r * stride + 4 * (32 + i), 4);
        CHECK(std::fabs(value - expected) <= 1e-5 * size + 1e-30);
      }
    }
  }
}

TEST_CASE("epilogues have the scalar bits, and nothing else is written") {
  const DenormalsOff denormals_off;
  const EpilogueInput input = make_input();
  for (const LinearKernels& kernels : kernels_under_test()) {
    for (const EpilogueCase& c : all_cases()) {
      CAPTURE(static_cast<int>(c.out_kind));
      CAPTURE(c.num_columns);
      CAPTURE(c.is_gated);
      CHECK(run_epilogue(kernels, input, c) == run_epilogue(reference(), input, c));
    }
  }
}

TEST_CASE("an epilogue's q8 and bf16 rows are the quantisation of its f32 rows") {
  const DenormalsOff denormals_off;
  const EpilogueInput input = make_input();
  for (const LinearKernels& kernels : all_kernels()) {
    const std::vector<uint8_t> plain = run_epilogue(kernels, input, {true, true, false, true, TK_ROWS_F32, 32});
    const std::vector<uint8_t> q8 = run_epilogue(kernels, input, {true, true, false, true, TK_ROWS_Q8, 32});
    std::vector<float> x(64, 0.0f);
    memcpy(x.data() + 32, plain.data() + 2 * (plain.size() / 6) + 4 * 32, 4 * 32);
    const Q8Row row = quantize_one(kernels, x);
    const uint8_t* out = q8.data() + 2 * (q8.size() / 6);
    CHECK(memcmp(out + 32, row.q.data() + 32, 32) == 0);
    CHECK(tk_q8_scales_of(out, 64)[1] == row.scales[1]);
    CHECK(memcmp(tk_q8_sums_of(out, 64) + 2, row.sums.data() + 2, 4) == 0);
  }
}

TEST_CASE("a residual may be the output itself") {
  const DenormalsOff denormals_off;
  for (const LinearKernels& kernels : all_kernels()) {
    EpilogueInput input = make_input();
    const std::vector<float> before = input.residual;
    const tk_epilogue epilogue{nullptr, nullptr,     input.residual.data(), 4 * 96, input.residual.data(), 4 * 96,
                               96,      TK_ROWS_F32, TK_ACTIVATION_NONE};
    const tk_tile tile{input.gate.data(), 32, 0, 5};
    kernels.epilogue(&epilogue, &tile, nullptr, 64, 32);
    for (uint32_t i = 0; i < 32; ++i) CHECK(input.residual[64 + i] == before[64 + i] + input.gate[i]);
    CHECK(input.residual[63] == before[63]);
  }
}

TEST_CASE("the linear digest is the same for every instruction set") {
  const std::string scalar = linear_digest(Isa::kScalar);
  CHECK(scalar.size() == 32);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (is_supported(isa)) CHECK(linear_digest(isa) == scalar);
  }
}
