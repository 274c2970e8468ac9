// Opening models: the pack cache with real weights and several openers, options that cannot be, packing to fewer bits,
// memory for KV, steps that are watched.
// needs: serve_runner plugins_cpu

#include "serve/runner/model_runner.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "e2e/fixture_files.h"
#include "e2e/scoring.h"

namespace tandem::e2e {
namespace {

// A folder that goes away with the object.
class CacheFolder {
 public:
  CacheFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-e2e-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~CacheFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  size_t num_files(const std::string& extension) const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) count += entry.path().extension() == extension;
    return count;
  }

 private:
  std::string path_;
};

const char* const kQuantised = "tiny/quantised/llama-gqa.Q4_K_M.gguf";

std::vector<TokenId> prompt() { return token_ids(*read_json(fixture("tiny/prompts.json")).find("n70")); }

std::string complaint(const runner::RunnerOptions& options) {
  auto runner = runner::ModelRunner::open(options);
  return runner ? std::string() : runner.error().message;
}

TEST_CASE("a model from the cache gives the bits of one packed anew; the name follows what changes the bytes") {
  const CacheFolder cache;
  runner::RunnerOptions options = test_options(fixture(kQuantised), 128);
  const Scores expected = score_all(*open_runner(options), prompt(), 64);
  options.pack_cache_directory = cache.path();
  const auto opens = [&](bool was_cached, size_t num_packs) {
    const auto runner = open_runner(options);
    CHECK(runner->weights_were_cached() == was_cached);
    CHECK(cache.num_files(".pack") == num_packs);
    CHECK(cache.num_files(".new") == 0);
    return score_all(*runner, prompt(), 64);
  };
  CHECK(opens(false, 1) == expected);
  CHECK(opens(true, 1) == expected);
  options.max_model_len = 100;
  options.num_kv_blocks = 8;
  CHECK(opens(true, 1) == expected);
  options.passes = "none";
  CHECK(opens(false, 2) == expected);
  CHECK(opens(true, 2) == expected);
  options.passes = "all";
  options.activations = model::Activations::kF32;
  CHECK(opens(false, 3) != expected);
  // Another model beside it.
  options.model_path = fixture("tiny/quantised/llama-gqa.Q4_0.gguf");
  CHECK(opens(false, 4) != expected);
}

TEST_CASE("threads and processes that open one model at once all get it") {
  for (int round = 0; round < 3; ++round) {
    const CacheFolder cache;
    runner::RunnerOptions options = test_options(fixture(kQuantised), 128);
    options.num_threads = 1;
    options.pack_cache_directory = cache.path();
    std::vector<pid_t> children;
    for (int i = 0; i < 2; ++i) {
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) _exit(runner::ModelRunner::open(options) ? 0 : 1);
      children.push_back(child);
    }
    std::vector<Scores> scores(3);
    std::vector<std::thread> threads;
    for (Scores& result : scores) {
      threads.emplace_back([&result, &options] { result = score_all(*open_runner(options), prompt(), 64); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const pid_t child : children) {
      int status = -1;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
    }
    CHECK(scores[1] == scores[0]);
    CHECK(scores[2] == scores[0]);
    CHECK(cache.num_files(".pack") == 1);
    CHECK(cache.num_files(".new") == 0);
    CHECK(open_runner(options)->weights_were_cached());
  }
}

// Keeps the KV of the first block's layers as it is when they are said to be written.
class LayerWitness final : public sched::StepObserver {
 public:
  explicit LayerWitness(runner::ModelRunner& runner) : runner_(runner) {}
  void on_layers_written(uint32_t num_layers) override {
    CHECK(num_layers == written.size() + 1);
    written.push_back(layer(num_layers - 1));
  }
  std::vector<uint8_t> layer(uint32_t index) const {
    std::vector<uint8_t> bytes(runner_.kv_layout().layer_stride);
    CHECK(runner_.read_kv(kv::BlockId{0}, index, 1, bytes.data()));
    return bytes;
  }
  std::vector<std::vector<uint8_t>> written;

 private:
  runner::ModelRunner& runner_;
};

TEST_CASE("a step that is watched gives the same bits, and what it says is written stays as it is") {
  for (const char* name : {"tiny/llama-mha", "tiny/qwen3", "tiny/mistral-swa", kQuantised}) {
    CAPTURE(name);
    const auto watched = open_runner(test_options(fixture(name), 128));
    const auto plain = open_runner(test_options(fixture(name), 128));
    std::vector<TokenId> tokens = prompt();
    std::vector<kv::BlockId> blocks;
    for (uint32_t i = 0; i * 16 < tokens.size(); ++i) blocks.push_back(kv::BlockId{i});
    const SamplingParams sampling;
    std::vector<std::vector<float>> rows[2];
    const auto keep_in = [&rows](int which) {
      return [&rows, which](uint32_t, uint32_t, std::span<const float> logits) {
        rows[which].emplace_back(logits.begin(), logits.end());
      };
    };
    watched->observe_logits(keep_in(0));
    plain->observe_logits(keep_in(1));
    const auto num_tokens = static_cast<uint32_t>(tokens.size());
    for (const auto& [begin, end] : {std::pair<uint32_t, uint32_t>{0, 40}, {40, num_tokens}}) {
      sched::Batch batch;
      sched::BatchItem item;
      item.tokens = std::span(tokens).first(end);
      item.num_prompt_tokens = end;
      item.begin = begin;
      item.count = batch.num_tokens = end - begin;
      item.blocks = blocks;
      item.samples = true;
      item.sampling = &sampling;
      item.prompt_logprobs = 0;
      batch.items = {item};
      LayerWitness witness(*watched);
      auto got = watched->execute_observed(batch, witness), expected = plain->execute(batch);
      REQUIRE(got);
      REQUIRE(expected);
      CHECK(got->items[0].token == expected->items[0].token);
      CHECK(witness.written.size() == watched->config().num_layers);
      for (uint32_t layer = 0; layer < witness.written.size(); ++layer) {
        CHECK(witness.written[layer] == witness.layer(layer));
        CHECK(witness.written[layer] == LayerWitness(*plain).layer(layer));
      }
    }
    CHECK(rows[0] == rows[1]);
    CHECK(!rows[0].empty());
  }
}

// Runs other steps in the middle of the one that it watches: first a prompt, then a token at a time.
class Nester final : public sched::StepObserver {
 public:
  Nester(runner::ModelRunner& runner, std::vector<TokenId> prompt_tokens, std::vector<kv::BlockId> blocks)
      : tokens(std::move(prompt_tokens)), runner_(runner), blocks_(std::move(blocks)) {}
  void on_layers_written(uint32_t) override { run_one(); }
  void run_one() {
    sched::Batch batch;
    sched::BatchItem item;
    item.tokens = tokens;
    item.num_prompt_tokens = static_cast<uint32_t>(tokens.size());
    item.begin = num_computed_;
    item.count = batch.num_tokens = item.num_prompt_tokens - num_computed_;
    item.blocks = blocks_;
    item.samples = true;
    item.sampling = &sampling_;
    batch.items = {item};
    const auto outcome = runner_.execute(batch);
    REQUIRE(outcome);
    num_computed_ = static_cast<uint32_t>(tokens.size());
    tokens.push_back(outcome.value().items[0].token);
  }
  std::vector<TokenId> tokens;

 private:
  runner::ModelRunner& runner_;
  const std::vector<kv::BlockId> blocks_;
  const SamplingParams sampling_;
  uint32_t num_computed_ = 0;
};

TEST_CASE("steps in the middle of a step change no bit, of themselves or of it") {
  for (const char* name : {"tiny/llama-gqa", "tiny/mistral-swa", kQuantised}) {
    CAPTURE(name);
    runner::RunnerOptions options = test_options(fixture(name), 256);
    const auto plain = open_runner(options);
    CHECK(!plain->nests_steps());
    options.nests_steps = true;
    const auto nesting = open_runner(options);
    CHECK(nesting->nests_steps());
    const std::vector<kv::BlockId> lower = {kv::BlockId{0}, kv::BlockId{1}, kv::BlockId{2}, kv::BlockId{3}},
                                   upper = {kv::BlockId{8}, kv::BlockId{5}, kv::BlockId{7}, kv::BlockId{6}};
    std::vector<TokenId> first = prompt();
    const std::vector<TokenId> second(first.rbegin(), first.rbegin() + 37);
    first.resize(60);
    Nester inner(*nesting, second, upper), apart(*plain, second, upper);
    sched::Batch batch;
    sched::BatchItem item;
    const SamplingParams sampling;
    item.tokens = first;
    item.num_prompt_tokens = item.count = batch.num_tokens = 60;
    item.blocks = lower;
    item.samples = true;
    item.sampling = &sampling;
    item.prompt_logprobs = 5;
    batch.items = {item};
    const auto got = nesting->execute_observed(batch, inner), expected = plain->execute(batch);
    REQUIRE(got);
    REQUIRE(expected);
    for (uint32_t layer = 0; layer < plain->config().num_layers; ++layer) apart.run_one();
    CHECK(inner.tokens == apart.tokens);
    CHECK(got.value().items[0].token == expected.value().items[0].token);
    const auto& scores = got.value().items[0].prompt_logprobs;
    const auto& expected_scores = expected.value().items[0].prompt_logprobs;
    REQUIRE(scores.size() == expected_scores.size());
    CHECK(scores.size() == 59);
    for (size_t i = 0; i < scores.size(); ++i) CHECK(scores[i].logprob == expected_scores[i].logprob);
    for (uint32_t block = 0; block < 4; ++block) {
      std::vector<uint8_t> bytes[2];
      for (int which = 0; which < 2; ++which) {
        bytes[which].resize(plain->kv_layout().num_layers * plain->kv_layout().layer_stride);
        auto& runner = which == 0 ? *nesting : *plain;
        CHECK(runner.read_kv(kv::BlockId{block}, 0, runner.config().num_layers, bytes[which].data()));
      }
      if (block < 3) CHECK(bytes[0] == bytes[1]);  // the last one is not full
    }
  }
}

// Mean Kullback-Leibler divergence of `other` from `reference`, over positions.
double mean_divergence(const Scores& reference, const Scores& other) {
  double sum = 0;
  for (size_t row = 0; row < reference.size(); ++row) {
    for (size_t i = 0; i < reference[row].size(); ++i) {
      sum += std::exp(reference[row][i]) * (reference[row][i] - other[row][i]);
    }
  }
  return sum / static_cast<double>(reference.size());
}

// Measured on these models: W8 0.0026 to 0.0063, W4 0.27 to 0.61, int8 activations included. They are large because the
// models are small and their weights random: each logit sums few products that do not cancel. Bounds: three times that.
TEST_CASE("float models packed to 8 and 4 bits stay close to themselves") {
  for (const char* name : {"tiny/llama-mha", "tiny/llama-gqa", "tiny/qwen2", "tiny/qwen3", "tiny/mistral-swa"}) {
    CAPTURE(name);
    runner::RunnerOptions options = test_options(fixture(name), 128);
    options.activations = model::Activations::kF32;
    const auto plain = open_runner(options);
    const Scores reference = score_all(*plain, prompt(), 64);
    options.activations.reset();  // weights packed to integers ask for int8 by themselves
    options.quantization = TD_QUANTIZE_W8;
    const auto w8 = open_runner(options);
    CHECK(w8->activations() == model::Activations::kInt8);
    const double divergence_w8 = mean_divergence(reference, score_all(*w8, prompt(), 64));
    options.quantization = TD_QUANTIZE_W4;
    const auto w4 = open_runner(options);
    const double divergence_w4 = mean_divergence(reference, score_all(*w4, prompt(), 64));
    CAPTURE(divergence_w8);
    CAPTURE(divergence_w4);
    CHECK(divergence_w8 > 0);
    CHECK(divergence_w8 < 0.02);
    CHECK(divergence_w4 > divergence_w8);
    CHECK(divergence_w4 < 1.8);
    CHECK(w8->weight_bytes() < plain->weight_bytes() / 2);
    CHECK(w4->weight_bytes() < w8->weight_bytes());
  }
}

TEST_CASE("packing to 8 bits costs no more than a Q8_0 file of the same model, made by another program") {
  runner::RunnerOptions options = test_options(fixture("tiny/llama-gqa"), 128);
  options.activations = model::Activations::kF32;
  const Scores reference = score_all(*open_runner(options), prompt(), 64);
  options.activations = model::Activations::kInt8;
  options.quantization = TD_QUANTIZE_W8;
  const double packed = mean_divergence(reference, score_all(*open_runner(options), prompt(), 64));
  options.quantization = TD_QUANTIZE_NONE;
  options.model_path = fixture("tiny/quantised/llama-gqa.Q8_0.gguf");
  const double file = mean_divergence(reference, score_all(*open_runner(options), prompt(), 64));
  CAPTURE(packed);
  CAPTURE(file);
  CHECK(packed < 1.5 * file);
  CHECK(file < 1.5 * packed);
}

TEST_CASE("options that cannot be are refused in words") {
  const runner::RunnerOptions good = test_options(fixture(kQuantised), 128);
  CHECK(complaint(good).empty());
  runner::RunnerOptions options = good;
  options.max_model_len = 999'999;
  CHECK(complaint(options) == "--max-model-len 999999 is more than the model's " +
                                  std::to_string(open_runner(good)->config().max_position) + " positions");
  options = good;
  options.isa = "sse9";
  CHECK(complaint(options).find("'sse9'; there are scalar") != std::string::npos);
  options = good;
  options.passes = "fuse_all";
  CHECK(complaint(options).find("no pass is called 'fuse_all'") != std::string::npos);
  options = good;
  options.block_tokens = 24;
  CHECK(complaint(options).find("multiple of 16") != std::string::npos);
  options = good;
  options.num_kv_blocks = 0;
  options.kv_memory_bytes = 1000;
  CHECK(complaint(options).find("no room for one KV block of") != std::string::npos);
  options = good;
  options.model_path = fixture("tiny/nothing.gguf");
  CHECK(complaint(options).find("nothing.gguf") != std::string::npos);
}

TEST_CASE("the KV pool is what memory holds, no more than sequences can use, and a small one shortens contexts") {
  runner::RunnerOptions options = test_options(fixture(kQuantised), 128);
  options.num_kv_blocks = 0;
  options.max_sequences = 4;
  const uint64_t block_bytes = open_runner(options)->kv_layout().block_stride;
  options.kv_memory_bytes = 10 * block_bytes + block_bytes / 2;
  const auto small = open_runner(options);
  CHECK(small->num_blocks() == 10);
  CHECK(small->max_model_len() == 160);
  options.kv_memory_bytes = uint64_t{1} << 40;
  options.max_model_len = 100;
  const auto large = open_runner(options);
  CHECK(large->num_blocks() == 4 * 7);
  CHECK(large->max_model_len() == 100);
  options.num_kv_blocks = 5;
  CHECK(open_runner(options)->num_blocks() == 5);
}

TEST_CASE("the KV type follows the activations unless one is asked for, and is part of the fingerprint") {
  runner::RunnerOptions options = test_options(fixture(kQuantised), 128);
  const auto int8 = open_runner(options);
  CHECK(int8->kv_layout().kind == TD_KV_BF16);
  CHECK(int8->activations() == model::Activations::kInt8);
  options.activations = model::Activations::kF32;
  const auto f32 = open_runner(options);
  CHECK(f32->kv_layout().kind == TD_KV_F32);
  CHECK(f32->fingerprint() != int8->fingerprint());
  options.activations.reset();
  options.kv_type = runner::KvType::kInt8;
  const auto int8_kv = open_runner(options);
  CHECK(int8_kv->kv_layout().kind == TD_KV_INT8);
  CHECK(int8_kv->fingerprint() != int8->fingerprint());
  CHECK(open_runner(options)->fingerprint() == int8_kv->fingerprint());
}

}  // namespace
}  // namespace tandem::e2e
