// Passes never change a result: log-probabilities are equal bit for bit with all passes, none, each alone, and without
// the memory plan.
// needs: serve_runner plugins_cpu

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "compute/graph/passes.h"
#include "e2e/fixture_files.h"
#include "e2e/scoring.h"

namespace tandem::e2e {
namespace {

bool is_same(const Scores& a, const Scores& b) {
  if (a.size() != b.size()) return false;
  for (size_t row = 0; row < a.size(); ++row) {
    if (a[row].size() != b[row].size()) return false;
    if (std::memcmp(a[row].data(), b[row].data(), a[row].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

std::vector<std::string> choices() {
  std::vector<std::string> all = {"all", "fuse", "plan_memory"};
  for (const graph::Pass& pass : graph::all_passes()) all.emplace_back(pass.name);
  return all;
}

struct Variant {
  const char* name;
  model::Activations activations;
  td_quantization quantization = TD_QUANTIZE_NONE;
};

Scores score(const std::string& path, const Variant& variant, const std::string& passes,
             const std::vector<TokenId>& tokens) {
  runner::RunnerOptions options = test_options(path, 256);
  options.activations = variant.activations;
  options.quantization = variant.quantization;
  options.passes = passes;
  return score_all(*open_runner(options), tokens, 41);
}

void check_model(const std::string& model, const std::vector<Variant>& variants) {
  const JsonValue prompts = read_json(fixture("tiny/prompts.json"));
  const std::vector<TokenId> tokens = token_ids(*prompts.find("n70"));
  std::vector<Scores> by_variant;
  for (const Variant& variant : variants) {
    CAPTURE(model);
    CAPTURE(variant.name);
    const Scores expected = score(fixture(model), variant, "none", tokens);
    for (const std::string& passes : choices()) {
      CAPTURE(passes);
      CHECK(is_same(score(fixture(model), variant, passes, tokens), expected));
    }
    // Activations do change the bits: otherwise the comparison above would be blind.
    for (const Scores& other : by_variant) CHECK(!is_same(other, expected));
    by_variant.push_back(expected);
  }
}

using model::Activations;
const std::vector<Variant> kAll = {
    {"int8", Activations::kInt8}, {"bf16", Activations::kBF16}, {"f32", Activations::kF32}};
// Of float files: int8 activations need weights packed to integers.
const std::vector<Variant> kPacked = {
    {"int8 w8", Activations::kInt8, TD_QUANTIZE_W8}, {"bf16", Activations::kBF16}, {"f32", Activations::kF32}};

TEST_CASE("quantised models, of one type and of mixed types") {
  check_model("tiny/quantised/llama-gqa.Q4_0.gguf", kAll);
  check_model("tiny/quantised/llama-gqa.Q4_K_M.gguf", kAll);
}

TEST_CASE("models with biases, head norms and a window") {
  check_model("tiny/qwen2.F16.gguf", kPacked);
  check_model("tiny/qwen3", kPacked);
  check_model("tiny/mistral-swa", kPacked);
}

}  // namespace
}  // namespace tandem::e2e
