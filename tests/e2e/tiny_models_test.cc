// The small models in every file form against the logits of an independent implementation (transformers, f32).
// needs: serve_runner plugins_cpu

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "e2e/fixture_files.h"
#include "e2e/scoring.h"

namespace tandem::e2e {
namespace {

constexpr double kTolerance = 1e-3;

std::vector<double> log_softmax(const float* logits, size_t count) {
  const double max = *std::max_element(logits, logits + count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(logits[i] - max);
  std::vector<double> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = logits[i] - max - std::log(sum);
  return out;
}

// The largest difference to the reference's log-probabilities of one prompt. The reference holds the last rows.
double worst_difference(const std::vector<std::vector<float>>& scores, const Array& reference) {
  const size_t vocabulary = reference.shape[1];
  const size_t first = scores.size() - reference.shape[0];
  double worst = 0;
  for (size_t row = 0; row < reference.shape[0]; ++row) {
    const std::vector<double> expected = log_softmax(reference.f32.data() + row * vocabulary, vocabulary);
    for (size_t i = 0; i < vocabulary; ++i) worst = std::max(worst, std::abs(scores[first + row][i] - expected[i]));
  }
  return worst;
}

void check_model(const std::string& model, const std::string& reference_path) {
  CAPTURE(model);
  runner::RunnerOptions options = test_options(fixture(model), 256);
  options.activations = model::Activations::kF32;
  const auto runner = open_runner(options);
  const auto reference = read_safetensors(fixture(reference_path));
  const JsonValue prompts = read_json(fixture("tiny/prompts.json"));
  size_t num_compared = 0;  // greedy tokens before the first near tie
  for (const char* prompt : {"n5", "n70", "n200"}) {
    CAPTURE(prompt);
    const std::vector<TokenId> tokens = token_ids(*prompts.find(prompt));
    const auto logits = reference.find(std::string(prompt) + ".logits");
    REQUIRE(logits != reference.end());
    CHECK(worst_difference(score_all(*runner, tokens, 256), logits->second) <= kTolerance);
    CHECK(worst_difference(score_all(*runner, tokens, 33), logits->second) <= kTolerance);
    const Array& expected = reference.at(std::string(prompt) + ".greedy");
    const Array& gap = reference.at(std::string(prompt) + ".gap");
    const std::vector<TokenId> got = greedy(*runner, tokens, static_cast<uint32_t>(expected.i32.size()));
    for (size_t i = 0; i < got.size() && gap.f32[i] > 2 * kTolerance; ++i, ++num_compared) {
      CHECK(got[i] == expected.i32[i]);
    }
  }
  CHECK(num_compared >= 32);
}

TEST_CASE("each small model, as a directory and as GGUF, gives the reference logits") {
  for (const char* name : {"llama-mha", "llama-gqa", "llama-mqa", "llama-tied", "llama-rope-llama3",
                           "llama-rope-linear", "llama-rope-yarn", "mistral-swa", "qwen2", "qwen3"}) {
    const std::string base = std::string("tiny/") + name;
    check_model(base, base + "/reference.safetensors");
    check_model(base + ".F16.gguf", base + "/reference.safetensors");
  }
  check_model("tiny/llama-mha.F32.gguf", "tiny/llama-mha/reference.safetensors");
  check_model("tiny/llama-mha.BF16.gguf", "tiny/llama-mha/reference.safetensors");
}

TEST_CASE("each quantised file gives the logits of its own dequantised weights") {
  for (const char* type : {"Q4_0", "Q8_0", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"}) {
    const std::string base = std::string("tiny/quantised/llama-gqa.") + type;
    check_model(base + ".gguf", base + ".safetensors");
  }
}

TEST_CASE("without its window the sliding-window model gives the reference's values without one") {
  const auto reference = read_safetensors(fixture("tiny/mistral-swa/reference.safetensors"));
  REQUIRE(reference.count("n200.logits_no_window") == 1);
  runner::RunnerOptions options = test_options(fixture("tiny/mistral-swa"), 256);
  options.activations = model::Activations::kF32;
  const auto runner = open_runner(options);
  const JsonValue prompts = read_json(fixture("tiny/prompts.json"));
  const auto scores = score_all(*runner, token_ids(*prompts.find("n200")), 64);
  // The window matters at 200 tokens: the model with it must differ from the one without.
  CHECK(worst_difference(scores, reference.at("n200.logits_no_window")) > 0.1);
}

}  // namespace
}  // namespace tandem::e2e
