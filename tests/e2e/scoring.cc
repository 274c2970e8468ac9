#include "e2e/scoring.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "base/check.h"
#include "plugins/cpu/cpu_plugin.h"

namespace tandem::e2e {
namespace {

// All blocks of the pool, from the last to the first: neighbours in the sequence are none in memory.
std::vector<kv::BlockId> scattered_blocks(const runner::ModelRunner& runner, size_t num_tokens) {
  const uint32_t needed = static_cast<uint32_t>((num_tokens + runner.block_tokens() - 1) / runner.block_tokens());
  TANDEM_CHECK(needed <= runner.num_blocks());
  std::vector<kv::BlockId> blocks;
  for (uint32_t i = 0; i < needed; ++i) blocks.push_back(kv::BlockId{runner.num_blocks() - 1 - i});
  return blocks;
}

sched::ItemOutcome run_item(runner::ModelRunner& runner, const sched::BatchItem& item) {
  sched::Batch batch;
  batch.items = {item};
  batch.num_tokens = item.count;
  auto outcome = runner.execute(batch);
  if (!outcome) check_failed("execute", 0, outcome.error().message.c_str());
  if (outcome->items[0].error) check_failed("item", 0, outcome->items[0].error->message.c_str());
  return std::move(outcome->items[0]);
}

std::vector<float> log_softmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - max);
  const double log_sum = max + std::log(sum);
  std::vector<float> values(logits.begin(), logits.end());
  for (float& value : values) value = static_cast<float>(value - log_sum);
  return values;
}

}  // namespace

runner::RunnerOptions test_options(const std::string& model_path, uint32_t max_tokens) {
  runner::RunnerOptions options;
  options.model_path = model_path;
  options.plugin = tandem_plugin_cpu;
  options.max_model_len = 0;
  options.num_kv_blocks = (max_tokens + options.block_tokens - 1) / options.block_tokens + 2;
  options.max_batched_tokens = 256;
  options.max_sequences = 64;
  return options;
}

std::unique_ptr<runner::ModelRunner> open_runner(const runner::RunnerOptions& options) {
  auto runner = runner::ModelRunner::open(options);
  if (!runner) check_failed(options.model_path.c_str(), 0, runner.error().message.c_str());
  return std::move(runner).value();
}

Scores score_chunk(runner::ModelRunner& runner, const std::vector<TokenId>& tokens, uint32_t begin, uint32_t count) {
  const std::vector<kv::BlockId> blocks = scattered_blocks(runner, tokens.size());
  SamplingParams sampling;
  sampling.temperature = 0;
  sched::BatchItem item;
  item.tokens = tokens;
  item.num_prompt_tokens = static_cast<uint32_t>(tokens.size());
  item.begin = begin;
  item.count = count;
  item.blocks = blocks;
  item.samples = begin + count == tokens.size();
  item.sampling = &sampling;
  item.prompt_logprobs = 0;  // asks for the logits of every row
  Scores scores;
  runner.observe_logits(
      [&](uint32_t, uint32_t, std::span<const float> logits) { scores.push_back(log_softmax(logits)); });
  run_item(runner, item);
  runner.observe_logits({});
  return scores;
}

Scores score_all(runner::ModelRunner& runner, const std::vector<TokenId>& tokens, uint32_t chunk) {
  Scores scores;
  for (uint32_t begin = 0; begin < tokens.size(); begin += chunk) {
    const uint32_t count = std::min<uint32_t>(chunk, static_cast<uint32_t>(tokens.size()) - begin);
    Scores part = score_chunk(runner, tokens, begin, count);
    std::move(part.begin(), part.end(), std::back_inserter(scores));
  }
  return scores;
}

std::vector<TokenId> greedy(runner::ModelRunner& runner, std::vector<TokenId> tokens, uint32_t num_new) {
  const auto num_prompt = static_cast<uint32_t>(tokens.size());
  const std::vector<kv::BlockId> blocks = scattered_blocks(runner, tokens.size() + num_new);
  SamplingParams sampling;
  sampling.temperature = 0;
  uint32_t computed = 0;
  while (tokens.size() < num_prompt + num_new) {
    sched::BatchItem item;
    item.tokens = tokens;
    item.num_prompt_tokens = num_prompt;
    item.begin = computed;
    item.count = std::min<uint32_t>(128, static_cast<uint32_t>(tokens.size()) - computed);
    item.blocks = blocks;
    item.samples = item.begin + item.count == tokens.size();
    item.sampling = &sampling;
    computed += item.count;
    const sched::ItemOutcome outcome = run_item(runner, item);
    if (item.samples) tokens.push_back(outcome.token);
  }
  return {tokens.begin() + num_prompt, tokens.end()};
}

}  // namespace tandem::e2e
