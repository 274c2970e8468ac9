// The small models in every file form against the logits of an independent implementation (transformers, f32).
// needs: serve_runner plugins_cpu

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "compute/model/safetensors.h"
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

// LOD-08: the prompt of 200 tokens is beyond the 64 that the scaled models were trained on, so a scaling that is left
// out shows; with GGUF it is the tensor rope_freqs.weight. LOD-07: llama-tied has no output matrix, the others do.
TEST_CASE("LOD-07, LOD-08: each small model, as a directory and as GGUF, gives the reference logits") {
  for (const char* name : {"llama-mha", "llama-gqa", "llama-mqa", "llama-tied", "llama-rope-llama3",
                           "llama-rope-linear", "llama-rope-yarn", "mistral-swa", "qwen2", "qwen3"}) {
    const std::string base = std::string("tiny/") + name;
    check_model(base, base + "/reference.safetensors");
    check_model(base + ".F16.gguf", base + "/reference.safetensors");
  }
  check_model("tiny/llama-mha.F32.gguf", "tiny/llama-mha/reference.safetensors");
  check_model("tiny/llama-mha.BF16.gguf", "tiny/llama-mha/reference.safetensors");
}

// Fails when a head that is there is left out although the configuration says tied.
TEST_CASE("LOD-07: of a tied model that has an output matrix all the same, that matrix counts") {
  namespace fs = std::filesystem;
  const fs::path dir = fs::temp_directory_path() / ("tandem-tied-" + std::to_string(getpid()));
  fs::copy(fixture("tiny/llama-tied"), dir, fs::copy_options::recursive);
  const auto with_head = [&dir](const std::string& from, const char* tensor) {
    const auto file = MappedFile::open(from);
    REQUIRE(file);
    const auto tensors = model::parse_safetensors(file->bytes(), from);
    REQUIRE(tensors);
    const auto head = std::ranges::find(*tensors, tensor, &model::SafetensorsTensor::name);
    REQUIRE(head != tensors->end());
    const std::string header = R"({"lm_head.weight":{"dtype":")" + head->dtype +
                               R"(","shape":[512,128],"data_offsets":[0,)" + std::to_string(head->bytes.size()) +
                               "]}}";
    std::ofstream shard(dir / "head.safetensors", std::ios::binary);
    const uint64_t size = header.size();
    shard.write(reinterpret_cast<const char*>(&size), 8) << header;
    shard.write(reinterpret_cast<const char*>(head->bytes.data()), static_cast<std::streamsize>(head->bytes.size()));
  };
  const std::string own = (dir / "model.safetensors").string();
  std::string map = R"({"weight_map":{"lm_head.weight":"head.safetensors")";
  {
    const auto file = MappedFile::open(own);
    REQUIRE(file);
    const auto tensors = model::parse_safetensors(file->bytes(), own);
    REQUIRE(tensors);
    for (const auto& tensor : *tensors) map += ",\"" + tensor.name + R"(":"model.safetensors")";
  }
  std::ofstream(dir / "model.safetensors.index.json") << map << "}}";

  const auto difference = [&dir] {
    runner::RunnerOptions options = test_options(dir.string(), 256);
    options.activations = model::Activations::kF32;
    const auto runner = open_runner(options);
    const auto reference = read_safetensors(fixture("tiny/llama-tied/reference.safetensors"));
    const JsonValue prompts = read_json(fixture("tiny/prompts.json"));
    return worst_difference(score_all(*runner, token_ids(*prompts.find("n70")), 256), reference.at("n70.logits"));
  };
  with_head(own, "model.embed_tokens.weight");  // the same values
  CHECK(difference() <= kTolerance);
  with_head(fixture("tiny/llama-mha/model.safetensors"), "lm_head.weight");
  CHECK(difference() > 0.1);
  fs::remove_all(dir);
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
