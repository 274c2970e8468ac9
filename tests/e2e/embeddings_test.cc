// Hidden states of real models: those of an independent implementation by way of its logits, and the same whole, in
// chunks, alone and beside others.
// needs: serve_runner plugins_cpu

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "compute/model/weight_file.h"
#include "compute/model/weight_names.h"
#include "e2e/fixture_files.h"
#include "e2e/scoring.h"

namespace tandem::e2e {
namespace {

constexpr double kTolerance = 1e-3;
constexpr uint32_t kBlocksEach = 16;

using Pooled = std::vector<double>;

// One prompt on its way through the runner, with blocks of its own.
class PooledPrompt {
 public:
  PooledPrompt(std::vector<TokenId> tokens, sched::Pooling pooling, uint32_t slot)
      : tokens_(std::move(tokens)), pooling_(pooling) {
    for (uint32_t i = 0; i < kBlocksEach; ++i) blocks_.push_back(kv::BlockId{slot * kBlocksEach + i});
  }
  bool is_done() const { return num_computed_ == tokens_.size(); }
  const Pooled& pooled() const { return pooled_; }

  // The next `count` tokens, or as many as are left.
  sched::BatchItem next(uint32_t count) const {
    sched::BatchItem item;
    item.tokens = tokens_;
    item.num_prompt_tokens = static_cast<uint32_t>(tokens_.size());
    item.begin = num_computed_;
    item.count = std::min(count, item.num_prompt_tokens - num_computed_);
    item.blocks = blocks_;
    item.sampling = &sampling_;
    item.pooling = pooling_;
    item.pooled = pooled_;
    return item;
  }
  void take(const sched::BatchItem& item, sched::ItemOutcome& outcome) {
    REQUIRE(!outcome.error);
    num_computed_ += item.count;
    pooled_ = std::move(outcome.pooled);
  }

 private:
  std::vector<TokenId> tokens_;
  std::vector<kv::BlockId> blocks_;
  SamplingParams sampling_;
  sched::Pooling pooling_;
  uint32_t num_computed_ = 0;
  Pooled pooled_;
};

// In steps that hold up to `chunk` tokens of each.
std::vector<Pooled> run(runner::ModelRunner& runner, std::vector<PooledPrompt> prompts, uint32_t chunk) {
  while (!std::ranges::all_of(prompts, &PooledPrompt::is_done)) {
    sched::Batch batch;
    std::vector<PooledPrompt*> owners;
    for (PooledPrompt& prompt : prompts) {
      if (prompt.is_done()) continue;
      batch.items.push_back(prompt.next(chunk));
      batch.num_tokens += batch.items.back().count;
      owners.push_back(&prompt);
    }
    auto outcome = runner.execute(batch);
    REQUIRE(outcome);
    for (size_t i = 0; i < owners.size(); ++i) owners[i]->take(batch.items[i], outcome->items[i]);
  }
  std::vector<Pooled> pooled;
  for (const PooledPrompt& prompt : prompts) pooled.push_back(prompt.pooled());
  return pooled;
}

Pooled run_one(runner::ModelRunner& runner, std::vector<TokenId> tokens, sched::Pooling pooling, uint32_t chunk) {
  return run(runner, {PooledPrompt(std::move(tokens), pooling, 0)}, chunk)[0];
}

std::vector<TokenId> prompt(const char* name) { return token_ids(*read_json(fixture("tiny/prompts.json")).find(name)); }

TEST_CASE("the output layer times the last hidden state is the reference's logits") {
  const std::string path = fixture("tiny/llama-mha.F32.gguf");
  runner::RunnerOptions options = test_options(path, 512);
  options.activations = model::Activations::kF32;
  const auto runner = open_runner(options);
  auto files = model::WeightFiles::open(path);
  REQUIRE(files);
  auto tensors = model::collect(*files, runner->config());
  REQUIRE(tensors);
  REQUIRE(tensors->lm_head != nullptr);
  REQUIRE(tensors->lm_head->dtype == tensor::DType::kF32);
  std::vector<float> head(tensors->lm_head->bytes.size() / sizeof(float));
  std::memcpy(head.data(), tensors->lm_head->bytes.data(), tensors->lm_head->bytes.size());
  const auto reference = read_safetensors(fixture("tiny/llama-mha/reference.safetensors"));
  for (const char* name : {"n5", "n70", "n200"}) {
    CAPTURE(name);
    const Pooled hidden = run_one(*runner, prompt(name), sched::Pooling::kLast, 256);
    REQUIRE(hidden.size() == runner->config().hidden);
    const Array& logits = reference.at(std::string(name) + ".logits");
    const size_t vocabulary = logits.shape[1];
    const float* expected = logits.f32.data() + (logits.shape[0] - 1) * vocabulary;
    double worst = 0;
    for (size_t token = 0; token < vocabulary; ++token) {
      double logit = 0;
      for (size_t i = 0; i < hidden.size(); ++i) logit += hidden[i] * head[token * hidden.size() + i];
      worst = std::max(worst, std::abs(logit - expected[token]));
    }
    CHECK(worst <= kTolerance);
  }
}

// The fault: a sum that begins anew with each chunk.
TEST_CASE("hidden states are the same to the bit whole, in chunks, alone and beside others") {
  for (const char* name :
       {"tiny/llama-mha", "tiny/qwen3", "tiny/mistral-swa", "tiny/quantised/llama-gqa.Q4_K_M.gguf"}) {
    CAPTURE(name);
    const auto runner = open_runner(test_options(fixture(name), 3 * kBlocksEach * 16));
    const std::vector<TokenId> tokens = prompt("n70");
    Pooled sum(runner->config().hidden, 0.0);
    for (size_t length = 1; length <= tokens.size(); ++length) {
      const std::vector<TokenId> prefix(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length));
      const Pooled last = run_one(*runner, prefix, sched::Pooling::kLast, 256);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += last[i];
    }
    const Pooled last = run_one(*runner, tokens, sched::Pooling::kLast, 256);
    for (const uint32_t chunk : {256u, 64u, 33u, 7u}) {
      CHECK(run_one(*runner, tokens, sched::Pooling::kMean, chunk) == sum);
      CHECK(run_one(*runner, tokens, sched::Pooling::kLast, chunk) == last);
      const std::vector<Pooled> together =
          run(*runner,
              {PooledPrompt(prompt("n5"), sched::Pooling::kMean, 0), PooledPrompt(tokens, sched::Pooling::kMean, 1),
               PooledPrompt(tokens, sched::Pooling::kLast, 2)},
              chunk);
      CHECK(together[1] == sum);
      CHECK(together[2] == last);
    }
  }
}

}  // namespace
}  // namespace tandem::e2e
