#include "lab/bench/random_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "compute/model/model_config.h"
#include "compute/model/weight_file.h"
#include "compute/model/weight_names.h"
#include "compute/tensor/dequantize.h"

namespace tandem::bench {
namespace {

struct Moments {
  double mean = 0, deviation = 0;
};

Moments moments_of(const model::TensorEntry& tensor) {
  std::vector<float> values(tensor.num_elements());
  tensor::dequantize_row(tensor.dtype, tensor.bytes.data(), values.size(), values.data());
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double mean = sum / static_cast<double>(values.size());
  return {mean, std::sqrt(squares / static_cast<double>(values.size()) - mean * mean)};
}

TEST_CASE("a random model of every type loads as a file does, and its weights look trained") {
  for (const std::string_view type : random_types()) {
    CAPTURE(std::string(type));
    const auto bytes = random_gguf("smol", type);
    REQUIRE(bool(bytes));
    auto files = model::WeightFiles::from_gguf_bytes(bytes.value(), "random");
    REQUIRE(bool(files));
    auto config = model::read_config(files.value());
    REQUIRE(bool(config));
    CHECK(config->num_layers == 30);
    CHECK(config->tied_embeddings);
    auto tensors = model::collect(files.value(), config.value());
    REQUIRE(bool(tensors));
    CHECK(tensors->unused.empty());
    for (const model::TensorEntry* tensor : {tensors->layers[0].q, tensors->layers[29].down}) {
      const Moments moments = moments_of(*tensor);
      CHECK(std::abs(moments.mean) < 0.005);
      CHECK(moments.deviation > 0.02);
      CHECK(moments.deviation < 0.04);
    }
    const Moments norm = moments_of(*tensors->layers[3].attn_norm);
    CHECK(norm.mean == doctest::Approx(1).epsilon(0.02));
    // Layers are not copies of each other.
    CHECK_FALSE(std::ranges::equal(tensors->layers[0].q->bytes, tensors->layers[1].q->bytes));
  }
}

TEST_CASE("the same name gives the same bytes; an unknown one is refused") {
  const auto once = random_gguf("smol", "q4_0");
  const auto again = random_gguf("smol", "q4_0");
  REQUIRE(bool(once));
  CHECK(once.value() == again.value());
  CHECK_FALSE(bool(random_gguf("smol", "q5_k")));
  CHECK_FALSE(bool(random_gguf("gpt", "q8_0")));
}

TEST_CASE("the shapes are those of the models they are named after") {
  struct Expected {
    const char* name;
    double num_weights;
    bool has_bias;
  };
  for (const Expected& expected : {Expected{"qwen-0.5b", 494.0e6, true}, {"llama-1b", 1235.8e6, false}}) {
    const auto bytes = random_gguf(expected.name, "q4_0");
    REQUIRE(bool(bytes));
    auto files = model::WeightFiles::from_gguf_bytes(bytes.value(), "random");
    REQUIRE(bool(files));
    double num_weights = 0;
    for (const model::TensorEntry& tensor : files->tensors()) num_weights += static_cast<double>(tensor.num_elements());
    CHECK(num_weights == doctest::Approx(expected.num_weights).epsilon(1e-3));
    auto config = model::read_config(files.value());
    REQUIRE(bool(config));
    CHECK(config->qkv_bias == expected.has_bias);
    CHECK(bool(model::collect(files.value(), config.value())));
  }
}

}  // namespace
}  // namespace tandem::bench
