#include "compute/tensor/dequantize.h"

#include <doctest/doctest.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "compute/tensor/float16.h"
#include "compute/tensor/quant_block.h"
#include "compute/tensor/quant_fixture_for_test.h"

using namespace tandem;
using namespace tandem::tensor;

namespace {

constexpr int kRows = 16;
constexpr int kColumns = 512;

std::vector<DType> file_types() {
  std::vector<DType> types;
  for (int t = 1; t < kNumDTypes; ++t) types.push_back(static_cast<DType>(t));
  return types;
}

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

}  // namespace

TEST_CASE("dequantize: every type equals gguf-py bit for bit") {
  const QuantFixture fixture;
  for (const DType dtype : file_types()) {
    CAPTURE(std::string(dtype_name(dtype)));
    const auto raw = fixture.tensor(std::string(dtype_name(dtype)) + ".raw");
    const auto expected = fixture.tensor(std::string(dtype_name(dtype)) + ".f32");
    REQUIRE(raw.size() == kRows * row_bytes(dtype, kColumns));
    REQUIRE(expected.size() == kRows * kColumns * 4);
    int different = 0;
    std::vector<float> out(kColumns);
    for (int r = 0; r < kRows; ++r) {
      dequantize_row(dtype, raw.data() + r * row_bytes(dtype, kColumns), kColumns, out.data());
      for (int c = 0; c < kColumns; ++c) {
        uint32_t want;
        memcpy(&want, expected.data() + (r * kColumns + c) * 4, 4);
        different += bits_of(out[c]) != want;
      }
    }
    CHECK(different == 0);
  }
}

TEST_CASE("dequantize: the stored fields alone give the same bits") {
  const QuantFixture fixture;
  for (const DType dtype : file_types()) {
    if (!is_quantised(dtype)) continue;
    CAPTURE(std::string(dtype_name(dtype)));
    const QuantTraits traits = quant_traits(dtype);
    const auto raw = fixture.tensor(std::string(dtype_name(dtype)) + ".raw");
    int different = 0;
    bool fields_are_f16 = true;
    std::set<int> levels;
    std::vector<float> out(kColumns);
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* row = raw.data() + r * row_bytes(dtype, kColumns);
      dequantize_row(dtype, row, kColumns, out.data());
      for (int b = 0; b < kColumns / 32; ++b) {
        QuantBlock32 block;
        decode_block32(dtype, row, b, &block);
        REQUIRE(block.bits == traits.bits);
        REQUIRE(block.zero_point == traits.zero_point);
        REQUIRE(block.num_scales == traits.num_scales);
        REQUIRE(block.has_min == traits.has_min);
        for (int i = 0; i < 32; ++i) {
          const int s = traits.num_scales == 2 ? i / 16 : 0;
          float value = block.scale[s] * static_cast<float>(int{block.level[i]} - int{block.zero_point});
          if (traits.has_min) value = value + block.min[s];
          different += bits_of(value) != bits_of(out[b * 32 + i]);
          levels.insert(block.level[i]);
          for (const float field : {block.scale[s], block.min[s]}) {
            fields_are_f16 = fields_are_f16 && bits_of(f32_from_f16(f16_from_f32(field))) == bits_of(field);
          }
        }
      }
    }
    CHECK(different == 0);
    CHECK(*levels.rbegin() < (1 << traits.bits));
    CHECK(fields_are_f16 == traits.fields_are_f16);
  }
}

TEST_CASE("dequantize: a row needs no alignment and f32 is copied") {
  std::vector<uint8_t> bytes(1 + 8);
  const float values[2] = {1.5f, -0.0f};
  memcpy(bytes.data() + 1, values, 8);
  float out[2];
  dequantize_row(DType::kF32, bytes.data() + 1, 2, out);
  CHECK(bits_of(out[0]) == bits_of(1.5f));
  CHECK(bits_of(out[1]) == bits_of(-0.0f));
}

TEST_CASE("dtype: sizes") {
  CHECK(row_bytes(DType::kF32, 3) == 12);
  CHECK(row_bytes(DType::kBF16, 3) == 6);
  CHECK(row_bytes(DType::kQ4_1, 64) == 40);
  CHECK(row_bytes(DType::kQ6_K, 512) == 420);
  CHECK(std::string(dtype_name(DType::kIQ4_XS)) == "IQ4_XS");
  CHECK_FALSE(is_quantised(DType::kBF16));
  CHECK(is_quantised(DType::kQ4_0));
}
