#include "compute/model/rope_table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

using namespace tandem::model;

namespace {

// Expected values: the functions of transformers 5.24.0, modeling_rope_utils.py, run on float64 arrays.
using Expected = std::vector<std::pair<uint32_t, double>>;  // pair index, frequency

void check_frequencies(const RopeConfig& rope, uint32_t head_dim, const Expected& expected) {
  const std::vector<double> found = rope_frequencies(rope, head_dim);
  REQUIRE(found.size() == head_dim / 2);
  for (const auto& [pair, frequency] : expected) {
    CAPTURE(pair);
    CHECK(found[pair] == doctest::Approx(frequency).epsilon(1e-14));
  }
}

}  // namespace

TEST_CASE("LOD-08 rope: llama3 scaling as Llama 3.1 has it") {
  RopeConfig rope;
  rope.base = 500000.0;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_position = 8192;
  check_frequencies(rope, 128,
                    {{0, 1.0}, {10, 0.12868737343265052}, {20, 0.016560440080994446}, {28, 0.0032114459947525913},
                     {29, 0.002166570763503359}, {30, 0.0013718935677611381}, {32, 0.0005248461609929547},
                     {35, 9.556212353964683e-05}, {38, 5.165906874818956e-05}, {63, 3.068925988914511e-07}});
}

TEST_CASE("LOD-08 rope: yarn scaling as Qwen2.5 has it") {
  RopeConfig rope;
  rope.base = 1000000.0;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_max_position = 32768;
  check_frequencies(rope, 128,
                    {{0, 1.0}, {20, 0.01333521432163324}, {28, 0.001848276564706878}, {29, 0.0014051124815959123},
                     {32, 0.0006029411764705882}, {35, 0.0002462584069089387}, {38, 9.262301704129459e-05},
                     {40, 4.445698525097307e-05}, {63, 3.102344401879299e-07}});
}

TEST_CASE("LOD-08 rope: yarn without truncation and with other betas") {
  RopeConfig rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_max_position = 4096;
  rope.beta_fast = 16;
  rope.beta_slow = 2;
  rope.truncate = false;
  check_frequencies(rope, 32,
                    {{6, 0.03162277660168379}, {7, 0.0150961189570579}, {8, 0.005790104962447107},
                     {9, 0.001738218621832589}, {10, 0.00012395236926610428}, {15, 4.445698525097307e-06}});
}

TEST_CASE("LOD-08 rope: linear scaling and no scaling") {
  RopeConfig rope;
  check_frequencies(rope, 8, {{0, 1.0}, {1, 0.1}, {2, 0.01}, {3, 0.001}});
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  check_frequencies(rope, 8, {{0, 0.25}, {1, 0.025}, {2, 0.0025}, {3, 0.00025}});
}

TEST_CASE("LOD-08 rope: factors from a file divide the frequencies") {
  RopeConfig rope;
  rope.freq_factors = {1, 1, 2, 8};
  check_frequencies(rope, 8, {{0, 1.0}, {1, 0.1}, {2, 0.005}, {3, 0.000125}});
}

TEST_CASE("rope: the table holds cosines, then sines, times the attention factor") {
  RopeConfig rope;
  const std::vector<float> plain = rope_cos_sin(rope, 4, 3);
  REQUIRE(plain.size() == 3 * 2 * 2);
  CHECK(plain[0] == 1.0f);
  CHECK(plain[2] == 0.0f);
  CHECK(plain[8] == static_cast<float>(std::cos(2.0)));
  CHECK(plain[9] == static_cast<float>(std::cos(0.02)));
  CHECK(plain[10] == static_cast<float>(std::sin(2.0)));
  CHECK(plain[11] == static_cast<float>(std::sin(0.02)));

  rope.scaling = RopeScaling::kYarn;
  rope.original_max_position = 1 << 20;  // so long that every frequency is kept
  rope.factor = 4;
  rope.attention_factor = 1.5;
  const std::vector<float> scaled = rope_cos_sin(rope, 4, 1);
  CHECK(scaled[0] == 1.5f);
}
