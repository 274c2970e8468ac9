#include "compute/kernels/pack_weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "compute/kernels/denormals_off.h"
#include "compute/kernels/linear.h"
#include "compute/kernels/linear_samples.h"
#include "compute/tensor/dequantize.h"
#include "compute/tensor/quant_fixture_for_test.h"
#include "compute/tensor/float16.h"

using namespace tandem;
using namespace tandem::kernels;
using tensor::DType;
using tensor::QuantFixture;

namespace {

constexpr uint32_t kRows = 16;
constexpr uint32_t kColumns = 512;

std::vector<DType> fixture_types() {  // all but F32
  std::vector<DType> types;
  for (int t = 1; t < tensor::kNumDTypes; ++t) types.push_back(static_cast<DType>(t));
  return types;
}

AlignedBytes pack_all(const PanelLayout& layout, const WeightRows& rows) {
  AlignedBytes packed(packed_bytes(layout, rows.num_rows(), rows.k()));
  memset(packed.data(), 0xEE, packed.size());
  pack_panels(layout, rows, 0, num_panels(rows.num_rows()), packed.data());
  return packed;
}

std::vector<float> unpacked(const PanelLayout& layout, AlignedBytes& packed, uint32_t k, uint64_t row) {
  std::vector<float> out(k);
  unpack_row(layout, packed.data(), k, row, out.data());
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

std::vector<float> dequantized(const WeightPart& part, uint64_t row, uint32_t k) {
  std::vector<float> out(k);
  const auto* bytes = static_cast<const uint8_t*>(part.rows) + row * tensor::row_bytes(part.dtype, k);
  tensor::dequantize_row(part.dtype, bytes, k, out.data());
  return out;
}

}  // namespace

TEST_CASE("every type comes back from its panels bit for bit, and the rest of the panel is zero") {
  const QuantFixture fixture;
  for (DType dtype : fixture_types()) {
    const WeightPart part{dtype, fixture.tensor(std::string(tensor::dtype_name(dtype)) + ".raw").data(), kRows};
    for (Activations activations : {Activations::kInt8, Activations::kF32}) {
      const PanelLayout layout = layout_for(dtype, kColumns, {activations, Quantization::kNone});
      AlignedBytes packed = pack_all(layout, WeightRows::concatenated({part}, kColumns));
      for (uint32_t row = 0; row < kRows; ++row) {
        CAPTURE(tensor::dtype_name(dtype));
        CAPTURE(row);
        CHECK(same_bits(unpacked(layout, packed, kColumns, row), dequantized(part, row, kColumns)));
      }
      for (uint32_t row = kRows; row < TK_PANEL_ROWS; ++row) {
        for (float value : unpacked(layout, packed, kColumns, row)) CHECK(value == 0.0f);
      }
    }
  }
}

TEST_CASE("levels stay inside the range that the format states") {
  const QuantFixture fixture;
  for (DType dtype : fixture_types()) {
    const PanelLayout layout = layout_for(dtype, kColumns, {Activations::kInt8, Quantization::kNone});
    if (layout.format.kind != TK_PANEL_W8 && layout.format.kind != TK_PANEL_W4) continue;
    const WeightPart part{dtype, fixture.tensor(std::string(tensor::dtype_name(dtype)) + ".raw").data(), kRows};
    AlignedBytes packed = pack_all(layout, WeightRows::concatenated({part}, kColumns));
    int least = 255;
    int most = 0;
    for (uint32_t b = 0; b < kColumns / 32; ++b) {
      const uint8_t* block = packed.data() + b * tk_block_bytes(&layout.format);
      for (uint32_t i = 0; i < tk_scales_offset(&layout.format); ++i) {
        const int first = layout.format.kind == TK_PANEL_W4 ? block[i] & 15 : block[i];
        const int second = layout.format.kind == TK_PANEL_W4 ? block[i] >> 4 : block[i];
        least = std::min({least, first, second});
        most = std::max({most, first, second});
      }
    }
    CAPTURE(tensor::dtype_name(dtype));
    CHECK(least >= layout.format.level_min);
    CHECK(most <= layout.format.level_max);
  }
}

TEST_CASE("bf16 activations take every weight rounded once") {
  const QuantFixture fixture;
  for (DType dtype : fixture_types()) {
    const WeightPart part{dtype, fixture.tensor(std::string(tensor::dtype_name(dtype)) + ".raw").data(), kRows};
    const PanelLayout layout = layout_for(dtype, kColumns, {Activations::kBf16, Quantization::kNone});
    AlignedBytes packed = pack_all(layout, WeightRows::concatenated({part}, kColumns));
    for (uint32_t row = 0; row < kRows; ++row) {
      std::vector<float> expected = dequantized(part, row, kColumns);
      for (float& value : expected) value = tensor::f32_from_bf16(tensor::bf16_from_f32(value));
      CHECK(same_bits(unpacked(layout, packed, kColumns, row), expected));
    }
  }
}

TEST_CASE("linears of packed weights agree with the fixture's float64 products") {
  const DenormalsOff denormals_off;
  const QuantFixture fixture;
  const std::vector<float> x = fixture.floats("x");  // [3, 512]
  struct Tolerance {
    Activations activations;
    double relative;
  };
  const Tolerance tolerances[] = {{Activations::kInt8, 5e-3}, {Activations::kF32, 1e-6}, {Activations::kBf16, 8e-3}};
  for (const Tolerance& t : tolerances) {
    for (DType dtype : fixture_types()) {
      const std::string name = tensor::dtype_name(dtype);
      const WeightPart part{dtype, fixture.tensor(name + ".raw").data(), kRows};
      const PanelLayout layout = layout_for(dtype, kColumns, {t.activations, Quantization::kNone});
      AlignedBytes packed = pack_all(layout, WeightRows::concatenated({part}, kColumns));
      const std::vector<float> y = fixture.floats(name + ".y");
      const std::vector<float> magnitude = fixture.floats(name + ".yabs");
      for (Isa isa : {Isa::kScalar, best_isa()}) {
        const LinearKernels& kernels = linear_kernels(isa);
        const uint8_t kind = tk_rows_kind(layout.format.kind);
        const uint64_t stride = tk_activation_row_bytes(kind, kColumns);
        AlignedBytes rows(stride * 3);
        const tk_quantize quantize{x.data(), 4 * kColumns, rows.data(), stride, kColumns, kind};
        kernels.quantize(&quantize, 0, 3);
        const tk_linear linear{packed.data(), packed.size(), rows.data(), stride, kColumns, 1, layout.format};
        float out[3 * TK_PANEL_ROWS];
        linear_panel(kernels, linear, 0, {out, TK_PANEL_ROWS, 0, 3});
        for (uint32_t row = 0; row < 14; ++row) {
          for (uint32_t r = 0; r < 3; ++r) {
            CAPTURE(name);
            CAPTURE(row);
            const double bound = t.relative * static_cast<double>(magnitude[row * 3 + r]) + 1e-30;
            const double got = out[r * TK_PANEL_ROWS + row];
            CHECK(std::fabs(got - static_cast<double>(y[row * 3 + r])) <= bound);
          }
        }
      }
    }
  }
}

TEST_CASE("parts follow each other, or take turns by panels") {
  SampleRandom random(2);
  const uint32_t k = 64;
  const std::vector<float> a = sample_rows(40, k, random);
  const std::vector<float> b = sample_rows(40, k, random);
  const std::vector<float> c = sample_rows(7, k, random);
  const WeightPart part_a{DType::kF32, a.data(), 40};
  const WeightPart part_b{DType::kF32, b.data(), 40};
  const WeightPart part_c{DType::kF32, c.data(), 7};
  const PanelLayout layout = layout_for(DType::kF32, k, {});

  const WeightRows joined = WeightRows::concatenated({part_a, part_b, part_c}, k);
  CHECK(joined.num_rows() == 87);
  AlignedBytes packed = pack_all(layout, joined);
  CHECK(same_bits(unpacked(layout, packed, k, 39), dequantized(part_a, 39, k)));
  CHECK(same_bits(unpacked(layout, packed, k, 40), dequantized(part_b, 0, k)));
  CHECK(same_bits(unpacked(layout, packed, k, 86), dequantized(part_c, 6, k)));
  CHECK(same_bits(unpacked(layout, packed, k, 87), std::vector<float>(k, 0.0f)));

  const WeightRows turns = WeightRows::interleaved(part_a, part_b, k);
  CHECK(turns.num_rows() == 128);
  AlignedBytes gated = pack_all(layout, turns);
  CHECK(same_bits(unpacked(layout, gated, k, 31), dequantized(part_a, 31, k)));
  CHECK(same_bits(unpacked(layout, gated, k, 32), dequantized(part_b, 0, k)));
  CHECK(same_bits(unpacked(layout, gated, k, 64), dequantized(part_a, 32, k)));
  CHECK(same_bits(unpacked(layout, gated, k, 96 + 7), dequantized(part_b, 39, k)));
  CHECK(same_bits(unpacked(layout, gated, k, 96 + 8), std::vector<float>(k, 0.0f)));
}

TEST_CASE("panels packed one by one are the panels packed at once") {
  const QuantFixture fixture;
  const WeightPart part{DType::kQ4_1, fixture.tensor("Q4_1.raw").data(), kRows};
  const WeightRows rows = WeightRows::concatenated({part, part, part, part, part}, kColumns);
  const PanelLayout layout = layout_for(DType::kQ4_1, kColumns, {Activations::kInt8, Quantization::kNone});
  AlignedBytes whole = pack_all(layout, rows);
  AlignedBytes pieces(whole.size());
  for (uint64_t panel : {2u, 0u, 1u}) pack_panels(layout, rows, panel, panel + 1, pieces.data());
  CHECK(memcmp(whole.data(), pieces.data(), whole.size()) == 0);
}

TEST_CASE("quantisation at packing follows the rules of Q8_0 and Q4_0 files") {
  const QuantFixture fixture;
  const std::vector<float> source = fixture.floats("source");  // [14, 512], what the fixture's encoders were given
  const WeightPart part{DType::kF32, source.data(), 14};
  struct Rule {
    Quantization quantization;
    DType dtype;
  };
  for (const Rule& rule : {Rule{Quantization::kW8, DType::kQ8_0}, Rule{Quantization::kW4, DType::kQ4_0}}) {
    const std::string name = std::string(tensor::dtype_name(rule.dtype)) + ".raw";
    const WeightPart encoded{rule.dtype, fixture.tensor(name).data(), 14};
    for (Activations activations : {Activations::kInt8, Activations::kF32}) {
      const PanelLayout layout = layout_for(DType::kF32, kColumns, {activations, rule.quantization});
      AlignedBytes packed = pack_all(layout, WeightRows::concatenated({part}, kColumns));
      int differing_rows = 0;
      for (uint32_t row = 0; row < 14; ++row) {
        const std::vector<float> expected = dequantized(encoded, row, kColumns);
        if (!same_bits(unpacked(layout, packed, kColumns, row), expected)) ++differing_rows;
      }
      CHECK(differing_rows <= 1);  // independent encoders differ on one of these rows
    }
  }
}

TEST_CASE("layouts by target") {
  const auto kind = [](DType dtype, uint32_t k, PackTarget target) {
    return static_cast<int>(layout_for(dtype, k, target).format.kind);
  };
  CHECK(kind(DType::kQ4_1, 512, {Activations::kInt8, Quantization::kNone}) == TK_PANEL_W4);
  CHECK(kind(DType::kQ6_K, 512, {Activations::kInt8, Quantization::kW4}) == TK_PANEL_W8);
  CHECK(kind(DType::kF16, 512, {Activations::kInt8, Quantization::kNone}) == TK_PANEL_F32);
  CHECK(kind(DType::kBF16, 512, {Activations::kInt8, Quantization::kW4}) == TK_PANEL_W4);
  CHECK(kind(DType::kBF16, 500, {Activations::kInt8, Quantization::kW4}) == TK_PANEL_F32);
  CHECK(kind(DType::kBF16, 512, {Activations::kBf16, Quantization::kNone}) == TK_PANEL_BF16);
  CHECK(kind(DType::kQ8_0, 512, {Activations::kF32, Quantization::kNone}) == TK_PANEL_F32);
  const PanelLayout layout = layout_for(DType::kQ4_1, 576, {Activations::kInt8, Quantization::kNone});
  CHECK(packed_bytes(layout, 33, 576) == 2 * 18 * (512 + 64 + 64));
}
