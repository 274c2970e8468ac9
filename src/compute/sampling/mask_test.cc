// The mask of a grammar: what it leaves out never comes, whatever else a request asks for; the rest is as without it.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "compute/sampling/philox.h"
#include "compute/sampling/sampler.h"

namespace tandem::sampling {
namespace {

std::vector<float> random_logits(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = 12 * (uniform_at(seed, static_cast<uint32_t>(i), 0) - 0.5f);
  return values;
}

std::vector<uint32_t> mask_of(size_t count, const std::vector<TokenId>& tokens) {
  std::vector<uint32_t> mask((count + 31) / 32);
  for (const TokenId token : tokens) mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  return mask;
}

Result<Sampled> sampled(const std::vector<float>& logits, const SamplingParams& params, std::span<const uint32_t> mask,
                        uint32_t position = 0, std::span<const TokenId> output = {}) {
  Scratch scratch;
  return sample(logits, params, {{}, output, mask}, position, scratch);
}

TEST_CASE("only what the mask allows comes, in every mode") {
  const std::vector<float> logits = random_logits(1000, 1);
  const std::vector<TokenId> allowed = {0, 31, 32, 63, 500, 999};
  const std::vector<uint32_t> mask = mask_of(1000, allowed);
  const auto best = *std::ranges::max_element(allowed, {}, [&](TokenId token) { return logits[token]; });
  std::vector<SamplingParams> modes(6);
  modes[0].temperature = 0;
  modes[1].temperature = 2;
  modes[2].top_k = 3;
  modes[3].top_p = 0.5f;
  modes[4].min_p = 0.3f;
  modes[5].repetition_penalty = 1.5f;
  modes[5].frequency_penalty = -2;  // draws what was said before
  modes[5].logit_bias = {{7, 100}, {8, 100}};
  for (const SamplingParams& params : modes) {
    for (uint32_t position = 0; position < 100; ++position) {
      const std::vector<TokenId> output = {7, 7, 7, 500};
      auto token = sampled(logits, params, mask, position, output);
      REQUIRE(bool(token));
      CHECK(std::ranges::find(allowed, token->token) != allowed.end());
      if (params.temperature == 0) CHECK(token->token == best);
    }
  }
}

// A mask is a row whose other logits are minus infinity, and so the draw is the same one.
TEST_CASE("a masked draw is that of the row without the other tokens, and a full mask changes nothing") {
  const std::vector<float> logits = random_logits(700, 2);
  std::vector<TokenId> allowed, all;
  for (TokenId token = 0; token < 700; ++token) {
    all.push_back(token);
    if (token % 3 == 1) allowed.push_back(token);
  }
  std::vector<float> cut(logits.size(), -INFINITY);
  for (const TokenId token : allowed) cut[token] = logits[token];
  SamplingParams params;
  params.top_p = 0.9f;
  params.seed = 5;
  for (uint32_t position = 0; position < 200; ++position) {
    CHECK(sampled(logits, params, mask_of(700, allowed), position)->token == sampled(cut, params, {}, position)->token);
    CHECK(sampled(logits, params, mask_of(700, all), position)->token == sampled(logits, params, {}, position)->token);
  }
}

TEST_CASE("what lies beyond the mask's words is not allowed") {
  std::vector<float> logits(100, 0.0f);
  logits[99] = 50;
  SamplingParams greedy;
  greedy.temperature = 0;
  CHECK(sampled(logits, greedy, mask_of(64, {3, 40}))->token == 3);
}

TEST_CASE("logprobs are of the raw logits, also of what may not come") {
  const std::vector<float> logits = random_logits(300, 3);
  SamplingParams params;
  params.temperature = 0;
  params.num_logprobs = 5;
  auto masked = sampled(logits, params, mask_of(300, {17}));
  auto unmasked = sampled(logits, params, {});
  REQUIRE(bool(masked));
  CHECK(masked->token == 17);
  CHECK(masked->logprob->top == unmasked->logprob->top);
  Scratch scratch;
  const auto raw = token_logprob(logits, 17, 5, scratch);
  CHECK(masked->logprob->logprob == raw.value().logprob);
  CHECK(masked->logprob->rank == raw.value().rank);
}

TEST_CASE("a bias does not bring back what is masked, and the strongest bias against it forbids nothing that is left") {
  const std::vector<float> logits = random_logits(64, 4);
  SamplingParams params;
  params.logit_bias = {{5, 100}, {9, -100}};
  CHECK(sampled(logits, params, mask_of(64, {9}))->token == 9);
}

TEST_CASE("a mask and bans that leave nothing are an error of this row, in words for the client") {
  const std::vector<float> logits = random_logits(64, 5);
  SamplingParams params;
  params.banned = {9, 10};
  const auto none = sampled(logits, params, mask_of(64, {9, 10}));
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::kInvalidArgument);
  CHECK(none.error().message == "what the request bans and allows leaves no token to choose");
  CHECK(!sampled(logits, {}, std::vector<uint32_t>(2)));
  for (TokenId token = 0; token < 64; ++token) params.banned.push_back(token);
  CHECK(sampled(logits, params, {}).error().code == ErrorCode::kInvalidArgument);
  params.banned = {9, 10};
  CHECK(sampled(logits, params, mask_of(64, {9, 11}))->token == 11);
}

TEST_CASE("a logit that is not finite is a fault of the model, mask or not") {
  std::vector<float> logits = random_logits(64, 6);
  logits[20] = NAN;
  const auto broken = sampled(logits, {}, mask_of(64, {1}));
  REQUIRE(!broken);
  CHECK(broken.error().code == ErrorCode::kInternal);
}

}  // namespace
}  // namespace tandem::sampling
