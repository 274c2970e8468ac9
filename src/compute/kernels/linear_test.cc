#include "compute/kernels/linear.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "compute/kernels/denormals_off.h"
#include "compute/kernels/linear_entries_isa.h"
#include "compute/kernels/linear_samples.h"
#include "compute/kernels/pack_weights.h"
#include "compute/tensor/float16.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

struct NamedKernels {
  std::string name;
  LinearKernels kernels;
};

// Every table but the scalar one that can run here.
std::vector<NamedKernels> kernels_under_test() {
  std::vector<NamedKernels> tables;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (is_supported(isa)) tables.push_back({std::string(isa_name(isa)), linear_kernels(isa)});
  }
#ifdef TANDEM_HAS_SIMDE
  tables.push_back(
      {"avx512 by simde",
       {{tk_panel_f32_avx512_simde, tk_panel_bf16_avx512_simde, tk_panel_int8_avx512_simde, tk_panel_int8_avx512_simde},
        tk_linear_epilogue_avx512_simde,
        tk_quantize_avx512_simde}});
  tables.push_back({"avx512bf16 by simde", tables.back().kernels});
  tables.back().kernels.panel[TK_PANEL_BF16] = tk_panel_bf16_avx512bf16_simde;
#endif
  return tables;
}

const LinearKernels& reference() { return linear_kernels(Isa::kScalar); }

// `num_rows` activation rows of the kind that `format` multiplies.
AlignedBytes activation_rows(const tk_panel_format& format, uint32_t k, uint32_t num_rows, SampleRandom& random) {
  const std::vector<float> x = sample_rows(num_rows, k, random);
  const uint8_t kind = tk_rows_kind(format.kind);
  const uint64_t stride = tk_activation_row_bytes(kind, k);
  AlignedBytes rows(stride * num_rows);
  const tk_quantize quantize{x.data(), 4ull * k, rows.data(), stride, k, kind};
  reference().quantize(&quantize, 0, num_rows);
  return rows;
}

struct Problem {
  AlignedBytes panels;
  AlignedBytes rows;
  tk_linear linear;
};

Problem make_problem(const tk_panel_format& format, uint32_t k, uint32_t num_panels, uint32_t num_rows, uint64_t seed) {
  SampleRandom random(seed);
  AlignedBytes panels = sample_panels(format, k, num_panels, random);
  AlignedBytes rows = activation_rows(format, k, num_rows, random);
  Problem problem{std::move(panels), std::move(rows), {}};
  problem.linear = {problem.panels.data(),
                    tk_panel_bytes(&format, k),
                    problem.rows.data(),
                    tk_activation_row_bytes(tk_rows_kind(format.kind), k),
                    k,
                    1,
                    format};
  return problem;
}

std::vector<float> run_panel(const LinearKernels& kernels, const tk_linear& linear, uint32_t panel, uint32_t row_begin,
                             uint32_t row_end, uint32_t ld = TK_PANEL_ROWS) {
  std::vector<float> out(static_cast<size_t>(row_end - row_begin) * ld, -77.0f);
  linear_panel(kernels, linear, panel, {out.data(), ld, row_begin, row_end});
  return out;
}

// The index of the first float whose bits differ, or -1.
int64_t first_difference(const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

bool divides(const tk_panel_format& format, uint32_t k, uint32_t segments) {
  if (format.kind == TK_PANEL_F32) return k % segments == 0;
  if (format.kind == TK_PANEL_BF16) return k % 2 == 0 && k / 2 % segments == 0;
  return k / 32 % segments == 0;
}

// Weight `row` of panel 0 as f32, straight from the format's definition.
std::vector<float> weight_row(const tk_linear& linear, uint32_t row) {
  PanelLayout layout{linear.format, Quantization::kNone};
  std::vector<float> weights(linear.k);
  unpack_row(layout, linear.panels, linear.k, row, weights.data());
  return weights;
}

// Activation row `row` as the doubles that it stands for.
std::vector<double> activation_values(const tk_linear& linear, uint32_t row) {
  const uint8_t* bytes = linear.x + row * linear.x_stride;
  std::vector<double> values(linear.k);
  for (uint32_t i = 0; i < linear.k; ++i) {
    if (linear.format.kind == TK_PANEL_F32) {
      values[i] = reinterpret_cast<const float*>(bytes)[i];
    } else if (linear.format.kind == TK_PANEL_BF16) {
      values[i] = tensor::f32_from_bf16(reinterpret_cast<const uint16_t*>(bytes)[i]);
    } else {
      values[i] = static_cast<double>(static_cast<int8_t>(bytes[i])) * tk_q8_scales_of(bytes, linear.k)[i / 32];
    }
  }
  return values;
}

}  // namespace

TEST_CASE("which instruction sets these tests cover") {
  for (const NamedKernels& table : kernels_under_test()) std::printf("linear kernels tested: %s\n", table.name.c_str());
  if (!is_supported(Isa::kAvx512)) std::printf("SKIP avx512_native: no AVX-512 here\n");
#ifndef TANDEM_HAS_SIMDE
  std::printf("SKIP avx512_simde: SIMDe is not installed\n");
#endif
}

TEST_CASE("the scalar reference computes dot products") {
  const DenormalsOff denormals_off;
  for (const SampleFormat& sample : sample_formats()) {
    for (uint32_t segments : {1u, 4u}) {
      CAPTURE(sample.name);
      Problem problem = make_problem(sample.format, 1536, 1, 5, 11);
      problem.linear.segments = segments;
      const std::vector<float> out = run_panel(reference(), problem.linear, 0, 0, 5);
      for (uint32_t row = 0; row < TK_PANEL_ROWS; ++row) {
        const std::vector<float> weights = weight_row(problem.linear, row);
        for (uint32_t r = 0; r < 5; ++r) {
          const std::vector<double> x = activation_values(problem.linear, r);
          double sum = 0.0;
          double magnitude = 0.0;
          for (uint32_t i = 0; i < 1536; ++i) {
            sum += static_cast<double>(weights[i]) * x[i];
            magnitude += std::fabs(static_cast<double>(weights[i]) * x[i]);
          }
          CHECK(std::fabs(sum - out[r * TK_PANEL_ROWS + row]) <= 2e-6 * magnitude + 1e-30);
        }
      }
    }
  }
}

TEST_CASE("all instruction sets give the scalar bits, for every format, k, cut and tile") {
  const DenormalsOff denormals_off;
  constexpr uint32_t kMaxRows = 33;
  const std::vector<NamedKernels> tables = kernels_under_test();
  for (const SampleFormat& sample : sample_formats()) {
    for (uint32_t k : {32u, 64u, 96u, 576u, 1536u}) {
      Problem problem = make_problem(sample.format, k, 2, kMaxRows + 1, k);
      for (uint32_t segments : {1u, 2u, 4u, 8u, 16u}) {
        if (!divides(sample.format, k, segments)) continue;
        problem.linear.segments = segments;
        const std::vector<float> expected = run_panel(reference(), problem.linear, 1, 0, kMaxRows + 1);
        for (const NamedKernels& table : tables) {
          for (uint32_t num_rows : {1u, 2u, 3u, 5u, 8u, 17u, 33u}) {
            CAPTURE(table.name);
            CAPTURE(sample.name);
            CAPTURE(k);
            CAPTURE(segments);
            CAPTURE(num_rows);
            const std::vector<float> out = run_panel(table.kernels, problem.linear, 1, 1, 1 + num_rows);
            CHECK(first_difference(out.data(), expected.data() + TK_PANEL_ROWS, out.size()) == -1);
          }
        }
      }
    }
  }
}

TEST_CASE("the largest levels and activations do not saturate") {
  const DenormalsOff denormals_off;
  constexpr uint32_t kColumns = 64;
  for (const SampleFormat& sample : sample_formats()) {
    if (sample.format.kind != TK_PANEL_W8 && sample.format.kind != TK_PANEL_W4) continue;
    for (uint8_t level : {sample.format.level_min, sample.format.level_max}) {
      Problem problem = make_problem(sample.format, kColumns, 1, 5, 17);
      const int byte = sample.format.kind == TK_PANEL_W4 ? level * 17 : level;
      for (uint32_t b = 0; b < kColumns / 32; ++b) {
        uint8_t* block = problem.panels.data() + b * tk_block_bytes(&sample.format);
        memset(block, byte, tk_scales_offset(&sample.format));
      }
      std::vector<float> x(5 * kColumns);
      for (uint32_t i = 0; i < x.size(); ++i) {
        const uint32_t row = i / kColumns;  // 0: all 127, 1: by turns, the others: all -127
        x[i] = row == 0 || (row == 1 && i % 2 != 0) ? 1.0f : -1.0f;
      }
      const uint64_t stride = problem.linear.x_stride;
      const tk_quantize quantize{x.data(), 4 * kColumns, problem.rows.data(), stride, kColumns, TK_ROWS_Q8};
      reference().quantize(&quantize, 0, 5);
      const std::vector<float> expected = run_panel(reference(), problem.linear, 0, 0, 5);
      for (const NamedKernels& table : kernels_under_test()) {
        CAPTURE(table.name);
        CAPTURE(sample.name);
        CAPTURE(static_cast<int>(level));
        const std::vector<float> out = run_panel(table.kernels, problem.linear, 0, 0, 5);
        CHECK(first_difference(out.data(), expected.data(), out.size()) == -1);
      }
    }
  }
}

TEST_CASE("a row's bits do not depend on its neighbours") {
  const DenormalsOff denormals_off;
  std::vector<NamedKernels> tables = kernels_under_test();
  tables.push_back({"scalar", reference()});
  for (const SampleFormat& sample : sample_formats()) {
    Problem problem = make_problem(sample.format, 576, 1, 17, 3);
    for (const NamedKernels& table : tables) {
      const std::vector<float> together = run_panel(table.kernels, problem.linear, 0, 0, 17);
      for (uint32_t r = 0; r < 17; ++r) {
        CAPTURE(table.name);
        CAPTURE(sample.name);
        const std::vector<float> alone = run_panel(table.kernels, problem.linear, 0, r, r + 1);
        CHECK(first_difference(alone.data(), together.data() + r * TK_PANEL_ROWS, TK_PANEL_ROWS) == -1);
      }
    }
  }
}

TEST_CASE("two ranks with half of k and half of the segments each add up to the whole, bit for bit") {
  const DenormalsOff denormals_off;
  constexpr uint32_t kColumns = 1024;
  constexpr uint32_t kHalf = kColumns / 2;
  constexpr uint32_t kNumRows = 3;
  for (const SampleFormat& sample : sample_formats()) {
    SampleRandom random(31);
    AlignedBytes panels = sample_panels(sample.format, kColumns, 1, random);
    const std::vector<float> x = sample_rows(kNumRows, kColumns, random);
    const uint8_t kind = tk_rows_kind(sample.format.kind);
    const auto sums = [&](uint32_t first_column, uint32_t k, uint32_t segments) {
      const uint64_t stride = tk_activation_row_bytes(kind, k);
      AlignedBytes rows(stride * kNumRows);
      const tk_quantize quantize{x.data() + first_column, 4 * kColumns, rows.data(), stride, k, kind};
      reference().quantize(&quantize, 0, kNumRows);
      const uint8_t* part = panels.data() + tk_panel_bytes(&sample.format, first_column);
      const tk_linear linear{part, panels.size(), rows.data(), stride, k, segments, sample.format};
      return run_panel(reference(), linear, 0, 0, kNumRows);
    };
    const std::vector<float> whole = sums(0, kColumns, 8);
    const std::vector<float> left = sums(0, kHalf, 4);
    const std::vector<float> right = sums(kHalf, kHalf, 4);
    for (size_t i = 0; i < whole.size(); ++i) {
      CAPTURE(sample.name);
      CHECK(std::bit_cast<uint32_t>(whole[i]) == std::bit_cast<uint32_t>(left[i] + right[i]));
    }
  }
}

TEST_CASE("a row that is not finite stays so, and stays alone") {
  const DenormalsOff denormals_off;
  std::vector<NamedKernels> tables = kernels_under_test();
  tables.push_back({"scalar", reference()});
  for (const SampleFormat& sample : sample_formats()) {
    if (sample.format.kind == TK_PANEL_F32 || sample.format.kind == TK_PANEL_BF16) continue;
    Problem problem = make_problem(sample.format, 64, 1, 4, 13);
    const std::vector<float> before = run_panel(reference(), problem.linear, 0, 0, 4);
    uint8_t* bad = problem.rows.data() + 2 * problem.linear.x_stride;
    tk_q8_scales(bad, 64)[1] = std::bit_cast<float>(0x7FC00000u);
    for (const NamedKernels& table : tables) {
      CAPTURE(table.name);
      CAPTURE(sample.name);
      const std::vector<float> out = run_panel(table.kernels, problem.linear, 0, 0, 4);
      for (uint32_t i = 0; i < TK_PANEL_ROWS; ++i) CHECK(std::isnan(out[2 * TK_PANEL_ROWS + i]));
      CHECK(first_difference(out.data(), before.data(), 2 * TK_PANEL_ROWS) == -1);
      CHECK(first_difference(out.data() + 96, before.data() + 96, TK_PANEL_ROWS) == -1);
    }
  }
}

TEST_CASE("tiles write 32 floats a row and leave the rest of a wider one alone") {
  const DenormalsOff denormals_off;
  std::vector<NamedKernels> tables = kernels_under_test();
  tables.push_back({"scalar", reference()});
  for (const SampleFormat& sample : sample_formats()) {
    Problem problem = make_problem(sample.format, 64, 1, 7, 5);
    const std::vector<float> narrow = run_panel(reference(), problem.linear, 0, 0, 7);
    for (const NamedKernels& table : tables) {
      CAPTURE(table.name);
      CAPTURE(sample.name);
      const std::vector<float> wide = run_panel(table.kernels, problem.linear, 0, 0, 7, 40);
      for (uint32_t r = 0; r < 7; ++r) {
        CHECK(first_difference(wide.data() + r * 40, narrow.data() + r * TK_PANEL_ROWS, TK_PANEL_ROWS) == -1);
        for (uint32_t i = TK_PANEL_ROWS; i < 40; ++i) CHECK(wide[r * 40 + i] == -77.0f);
      }
    }
  }
}

TEST_CASE("bf16 rows and weights of odd length are padded with zero") {
  const DenormalsOff denormals_off;
  const tk_panel_format format{TK_PANEL_BF16, 0, 0, 0, 0, 0, 0};
  Problem problem = make_problem(format, 33, 1, 5, 9);
  const std::vector<float> expected = run_panel(reference(), problem.linear, 0, 0, 5);
  const std::vector<double> x = activation_values(problem.linear, 2);
  double sum = 0.0;
  for (uint32_t i = 0; i < 33; ++i) sum += static_cast<double>(weight_row(problem.linear, 4)[i]) * x[i];
  CHECK(expected[2 * TK_PANEL_ROWS + 4] == doctest::Approx(sum).epsilon(1e-4));
  for (const NamedKernels& table : kernels_under_test()) {
    const std::vector<float> out = run_panel(table.kernels, problem.linear, 0, 0, 5);
    CHECK(first_difference(out.data(), expected.data(), out.size()) == -1);
  }
}
