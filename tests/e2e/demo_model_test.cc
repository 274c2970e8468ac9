// The demo model (SmolLM2-135M-Instruct Q4_1) against an independent f32 implementation: the f32 path within its
// tolerances, then what each faster format costs.
// needs: serve_runner plugins_cpu
//
// The fixtures hold the 64 best logits of a position, so a full KL is taken against our own f32 path, which the first
// test ties to the reference.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "e2e/fixture_files.h"
#include "e2e/scoring.h"

namespace tandem::e2e {
namespace {

constexpr uint32_t kChunk = 64;
constexpr uint32_t kMaxTokens = 2048;

// Empty, and said so, without the model; the test set-up fetches it.
std::string demo_model() {
  const char* path = std::getenv("TANDEM_DEMO_MODEL");
  if (path == nullptr || *path == '\0') {
    std::printf("SKIP demo_model: TANDEM_DEMO_MODEL is not set\n");
    return {};
  }
  return path;
}

std::unique_ptr<runner::ModelRunner> open_demo(model::Activations activations, runner::KvType kv_type) {
  runner::RunnerOptions options = test_options(demo_model(), kMaxTokens);
  options.activations = activations;
  options.kv_type = kv_type;
  return open_runner(options);
}

size_t arg_max(const std::vector<float>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

struct Prompt {
  int64_t id = 0;
  std::vector<TokenId> tokens;
};

std::vector<Prompt> prompts() {
  std::vector<Prompt> all;
  for (const JsonValue& line : read_json_lines(fixture("smollm2/prompts.jsonl"))) {
    Prompt prompt;
    line.find("id")->as_int64(prompt.id);
    prompt.tokens = token_ids(*line.find("ids"));
    all.push_back(std::move(prompt));
  }
  return all;
}

// Logits are compared as log-probabilities: the constant between the two is the stored logsumexp.
double worst_difference(const Scores& scores, const std::map<std::string, Array>& reference, const std::string& key) {
  const Array& positions = reference.at(key + ".positions");
  const Array& ids = reference.at(key + ".top_ids");
  const Array& logits = reference.at(key + ".top_logits");
  const Array& log_sums = reference.at(key + ".logsumexp");
  double worst = 0;
  for (size_t row = 0; row < positions.i32.size(); ++row) {
    for (size_t i = row * 64; i < (row + 1) * 64; ++i) {
      const double expected = double{logits.f32[i]} - log_sums.f32[row];
      const double got = scores[static_cast<size_t>(positions.i32[row])][static_cast<size_t>(ids.i32[i])];
      worst = std::max(worst, std::abs(got - expected));
    }
  }
  return worst;
}

TEST_CASE("with f32 activations the demo model gives the reference's logits and greedy tokens") {
  if (demo_model().empty()) return;
  const auto runner = open_demo(model::Activations::kF32, runner::KvType::kAuto);
  const auto reference = read_safetensors(fixture("smollm2/reference.safetensors"));
  const std::vector<JsonValue> greedy_lines = read_json_lines(fixture("smollm2/greedy.jsonl"));
  for (const Prompt& prompt : prompts()) {
    CAPTURE(prompt.id);
    char key[8];
    std::snprintf(key, sizeof key, "p%02d", static_cast<int>(prompt.id));
    const double tolerance = prompt.id == 11 ? 5e-3 : 1e-3;
    CHECK(worst_difference(score_all(*runner, prompt.tokens, kChunk), reference, key) <= tolerance);

    const JsonValue& line = greedy_lines[static_cast<size_t>(prompt.id)];
    const std::vector<TokenId> expected = token_ids(*line.find("greedy"));
    const std::vector<TokenId> got = greedy(*runner, prompt.tokens, static_cast<uint32_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      double gap = 0;
      (*line.find("gap")->if_array())[i].as_double(gap);
      if (gap < 0.01 && got[i] != expected[i]) break;
      CHECK(got[i] == expected[i]);
    }
  }
}

TEST_CASE("with f32 activations the text's perplexity is the reference's") {
  if (demo_model().empty()) return;
  const auto runner = open_demo(model::Activations::kF32, runner::KvType::kAuto);
  const auto reference = read_safetensors(fixture("smollm2/perplexity.safetensors"));
  const std::vector<TokenId> tokens = reference.at("ids").i32;
  double sum = 0, worst = 0;
  size_t row = 0;
  for (uint32_t begin = 0; begin < tokens.size(); begin += kChunk) {
    const uint32_t count = std::min<uint32_t>(kChunk, static_cast<uint32_t>(tokens.size()) - begin);
    for (const std::vector<float>& scores : score_chunk(*runner, tokens, begin, count)) {
      CHECK(arg_max(scores) == static_cast<size_t>(reference.at("argmax").i32[row]));
      if (++row == tokens.size()) break;
      const double got = scores[static_cast<size_t>(tokens[row])];
      worst = std::max(worst, std::abs(got - reference.at("logprobs").f32[row - 1]));
      sum += got;
    }
  }
  const double perplexity = std::exp(-sum / static_cast<double>(tokens.size() - 1));
  CHECK(worst <= 1e-3);
  CHECK(std::abs(perplexity / reference.at("perplexity").f64[0] - 1) <= 1e-5);
}

struct Quality {
  double kl = 0;             // mean over the positions of prompts 0 to 10
  double perplexity = 0;     // of the text, relative to the reference: 0.01 is one per cent worse
  double text_top1 = 0;      // share of the text's positions with the reference's best token
  double greedy = 0;         // share of the reference's greedy tokens chosen when they are forced
};

double divergence(const std::vector<float>& reference, const std::vector<float>& other) {
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    sum += std::exp(double{reference[i]}) * (double{reference[i]} - double{other[i]});
  }
  return sum;
}

// Our own f32 path on prompts 0 to 10, computed once: what the faster formats are held against.
const std::vector<Scores>& exact_scores() {
  static const std::vector<Scores> all = [] {
    const auto exact = open_demo(model::Activations::kF32, runner::KvType::kF32);
    std::vector<Scores> scores;
    for (const Prompt& prompt : prompts()) {
      if (prompt.id <= 10) scores.push_back(score_all(*exact, prompt.tokens, kChunk));
    }
    return scores;
  }();
  return all;
}

double mean_divergence(runner::ModelRunner& fast) {
  double sum = 0;
  size_t count = 0;
  for (const Prompt& prompt : prompts()) {
    if (prompt.id > 10) continue;
    const Scores& expected = exact_scores()[static_cast<size_t>(prompt.id)];
    const Scores got = score_all(fast, prompt.tokens, kChunk);
    for (size_t row = 0; row < got.size(); ++row) sum += divergence(expected[row], got[row]);
    count += got.size();
  }
  return sum / static_cast<double>(count);
}

// Teacher-forced: after the prompt and the reference's tokens so far, is its next token ours too?
double greedy_agreement(runner::ModelRunner& fast) {
  size_t agreed = 0, count = 0;
  const std::vector<JsonValue> lines = read_json_lines(fixture("smollm2/greedy.jsonl"));
  for (const Prompt& prompt : prompts()) {
    if (prompt.id > 10) continue;
    const std::vector<TokenId> expected = token_ids(*lines[static_cast<size_t>(prompt.id)].find("greedy"));
    std::vector<TokenId> tokens = prompt.tokens;
    tokens.insert(tokens.end(), expected.begin(), expected.end() - 1);
    const Scores scores = score_all(fast, tokens, kChunk);
    for (size_t i = 0; i < expected.size(); ++i) {
      agreed += arg_max(scores[prompt.tokens.size() - 1 + i]) == static_cast<size_t>(expected[i]);
      ++count;
    }
  }
  return static_cast<double>(agreed) / static_cast<double>(count);
}

void measure_text(runner::ModelRunner& fast, Quality& quality) {
  const auto reference = read_safetensors(fixture("smollm2/perplexity.safetensors"));
  const std::vector<TokenId> tokens = reference.at("ids").i32;
  double sum = 0;
  size_t row = 0, agreed = 0;
  for (uint32_t begin = 0; begin < tokens.size(); begin += kChunk) {
    const uint32_t rows = std::min<uint32_t>(kChunk, static_cast<uint32_t>(tokens.size()) - begin);
    for (const std::vector<float>& scores : score_chunk(fast, tokens, begin, rows)) {
      agreed += arg_max(scores) == static_cast<size_t>(reference.at("argmax").i32[row]);
      if (++row < tokens.size()) sum += scores[static_cast<size_t>(tokens[row])];
    }
  }
  quality.text_top1 = static_cast<double>(agreed) / static_cast<double>(tokens.size());
  quality.perplexity = std::exp(-sum / static_cast<double>(tokens.size() - 1)) / reference.at("perplexity").f64[0] - 1;
}

Quality measure(model::Activations activations, runner::KvType kv_type) {
  Quality quality;
  const auto fast = open_demo(activations, kv_type);
  quality.kl = mean_divergence(*fast);
  quality.greedy = greedy_agreement(*fast);
  measure_text(*fast, quality);
  std::printf("  KL %.5f, perplexity %+.3f %%, top-1 %.2f %%, greedy %.2f %%\n", quality.kl, 100 * quality.perplexity,
              100 * quality.text_top1, 100 * quality.greedy);
  return quality;
}

TEST_CASE("int8 activations with bf16 KV stay within their bounds") {
  if (demo_model().empty()) return;
  const Quality quality = measure(model::Activations::kInt8, runner::KvType::kBF16);
  CHECK(quality.kl <= 0.0045);
  CHECK(std::abs(quality.perplexity) <= 0.006);
  CHECK(quality.text_top1 >= 0.955);
  CHECK(quality.greedy >= 0.96);
}

TEST_CASE("int8 activations with int8 KV stay within their bounds") {
  if (demo_model().empty()) return;
  const Quality quality = measure(model::Activations::kInt8, runner::KvType::kInt8);
  CHECK(quality.kl <= 0.0055);
}

TEST_CASE("bf16 activations stay within their bounds") {
  if (demo_model().empty()) return;
  const Quality quality = measure(model::Activations::kBF16, runner::KvType::kBF16);
  CHECK(quality.kl <= 0.0005);
}

}  // namespace
}  // namespace tandem::e2e
