#include "compute/sampling/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "compute/sampling/philox.h"

namespace tandem::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(size_t count, uint64_t seed, float scale) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    // A sum of uniforms: roughly bell-shaped, so that a few tokens stand out as in a real row.
    float sum = 0;
    for (uint32_t k = 0; k < 6; ++k) sum += uniform_at(seed, static_cast<uint32_t>(i), k) - 0.5f;
    values[i] = sum * scale;
  }
  return values;
}

TokenId token_of(const std::vector<float>& logits, const SamplingParams& params, uint32_t position = 0,
                 const TokenHistory& history = {}) {
  Scratch scratch;
  const auto sampled = sample(logits, params, history, position, scratch);
  REQUIRE(bool(sampled));
  return sampled.value().token;
}

std::string refusal(const SamplingParams& params, uint32_t vocabulary_size = 100) {
  const Status status = validate(params, vocabulary_size);
  return status ? "" : status.error().message;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

TEST_CASE("greedy takes the lowest id of the best, and never a banned token") {
  const std::vector<float> logits = {1, 5, 5, 2};
  SamplingParams params = greedy();
  CHECK(token_of(logits, params) == 1);
  params.banned = {1};
  CHECK(token_of(logits, params) == 2);
  params.temperature = 1;
  for (uint32_t position = 0; position < 200; ++position) CHECK(token_of(logits, params, position) != 1);
}

TEST_CASE("only allowed tokens are drawn, and never the last token of a bad word after those before it") {
  const std::vector<float> logits = {1, 5, 4, 2, 3};
  SamplingParams params = greedy();
  params.allowed = {0, 3};
  CHECK(token_of(logits, params) == 3);
  params.banned = {3};
  CHECK(token_of(logits, params) == 0);
  params.temperature = 1;
  params.banned = {};
  for (uint32_t position = 0; position < 200; ++position) {
    const TokenId token = token_of(logits, params, position);
    CHECK((token == 0 || token == 3));
  }
  params = greedy();
  params.bad_words = {{2, 4, 1}, {2}};
  const std::vector<TokenId> prompt = {2, 4}, other = {4, 2, 3}, begun = {0, 2, 4};
  CHECK(token_of(logits, params, 0, {prompt, {}}) == 1);  // of the output alone
  CHECK(token_of(logits, params, 0, {prompt, other}) == 1);
  CHECK(token_of(logits, params, 0, {prompt, begun}) == 4);
  params.bad_words = {{1}};
  CHECK(token_of(logits, params) == 2);
  params.allowed = {9, 3};
  CHECK(refusal(params, 5).find("token 9") != std::string::npos);
  params.allowed = {3, 1};
  CHECK(!refusal(params, 5).empty());
  params.allowed = {1};
  Scratch scratch;
  const auto none_left = sample(logits, params, {}, 0, scratch);
  REQUIRE(!none_left);
  CHECK(none_left.error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("SMP-01: a tiny temperature is greedy, also with masked tokens and exact ties") {
  std::vector<float> logits = random_logits(1000, 1, 20);
  logits[3] = -kInfinity;
  logits[4] = -100;
  logits[7] = logits[900] = 500;
  for (const float temperature : {0.0f, 1e-9f, 1e-38f, 1e-7f}) {
    SamplingParams params;
    params.temperature = temperature;
    CHECK(bool(validate(params, 1000)));
    for (uint32_t position = 0; position < 20; ++position) CHECK(token_of(logits, params, position) == 7);
  }
  SamplingParams params;
  params.temperature = 1e-4f;
  params.top_p = 1e-4f;
  CHECK(token_of(logits, params) == 7);
}

TEST_CASE("SMP-02, SMP-09: extremes are off or refused by name") {
  SamplingParams params;
  for (const int64_t top_k : {int64_t{-1}, int64_t{0}, int64_t{100}, int64_t{101}, int64_t{1} << 31, INT64_MAX}) {
    params.top_k = top_k;
    CHECK(refusal(params) == "");
    CHECK(token_of(random_logits(100, 2, 3), params, 9) == token_of(random_logits(100, 2, 3), {}, 9));
  }
  const auto refused_as = [](auto change) {
    SamplingParams changed;
    change(changed);
    return refusal(changed);
  };
  CHECK(refused_as([](auto& p) { p.top_k = -2; }) == "top_k must be -1 or 0 (off), or at least 1, got -2");
  CHECK(refused_as([](auto& p) { p.temperature = 999999; }) == "temperature must be between 0 and 100, got 999999");
  CHECK(refused_as([](auto& p) { p.temperature = kNaN; }).find("temperature") == 0);
  CHECK(refused_as([](auto& p) { p.temperature = -1e-9f; }).find("temperature") == 0);
  CHECK(refused_as([](auto& p) { p.top_p = -1; }) == "top_p must be between 0 and 1, got -1");
  CHECK(refused_as([](auto& p) { p.top_p = kInfinity; }).find("top_p") == 0);
  CHECK(refused_as([](auto& p) { p.min_p = 2; }).find("min_p must be") == 0);
  CHECK(refused_as([](auto& p) { p.repetition_penalty = 0; }).find("repetition_penalty must be") == 0);
  CHECK(refused_as([](auto& p) { p.presence_penalty = 2.5; }).find("presence_penalty must be") == 0);
  CHECK(refused_as([](auto& p) { p.frequency_penalty = kNaN; }).find("frequency_penalty must be") == 0);
  CHECK(refused_as([](auto& p) { p.num_logprobs = 101; }).find("logprobs must be") == 0);
  CHECK(refused_as([](auto& p) { p.logit_bias = {{100, 1.0f}}; }) ==
        "logit_bias: token 100 is outside the vocabulary (0 to 99)");
  CHECK(refused_as([](auto& p) { p.logit_bias = {{3, 1e30f}}; }).find("logit_bias must be between") == 0);
  CHECK(refused_as([](auto& p) { p.banned = {-1}; }) == "token -1 is outside the vocabulary (0 to 99)");
}

TEST_CASE("SMP-01: a row that is not finite is an error, and the scratch it used gives the next row its own answer") {
  const std::vector<float> good = random_logits(500, 3, 10);
  SamplingParams params;
  params.seed = 4;
  const TokenId alone = token_of(good, params, 5);
  Scratch scratch;
  for (const float bad : {kNaN, kInfinity}) {
    std::vector<float> row = good;
    row[499] = bad;
    CHECK_FALSE(bool(sample(row, params, {}, 5, scratch)));
    CHECK_FALSE(bool(sample(row, greedy(), {}, 5, scratch)));
    CHECK_FALSE(bool(token_logprob(row, 0, 3, scratch)));
    CHECK(sample(good, params, {}, 5, scratch).value().token == alone);
  }
  CHECK_FALSE(bool(sample(std::vector<float>(10, -kInfinity), params, {}, 0, scratch)));
  CHECK_FALSE(bool(sample({}, params, {}, 0, scratch)));
  SamplingParams all_banned;
  all_banned.banned = {0, 1};
  CHECK_FALSE(bool(sample(std::vector<float>{1, 2}, all_banned, {}, 0, scratch)));
}

TEST_CASE("SMP-09: parameters that nobody checked are errors or harmless, never a crash") {
  const std::vector<float> logits = random_logits(64, 8, 5);
  Scratch scratch;
  SamplingParams params;
  params.logit_bias = {{64, 1.0f}};
  CHECK_FALSE(bool(sample(logits, params, {}, 0, scratch)));
  params = {};
  params.banned = {INT32_MIN};
  CHECK_FALSE(bool(sample(logits, params, {}, 0, scratch)));
  params = {};
  params.repetition_penalty = 1e-45f;
  const std::vector<TokenId> all = {-5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000000};
  CHECK_FALSE(bool(sample(logits, params, {all, all}, 0, scratch)));  // a logit overflows
  for (const float odd : {kNaN, kInfinity, -kInfinity, -1.0f, 1e38f}) {
    for (float SamplingParams::* field : {&SamplingParams::temperature, &SamplingParams::top_p, &SamplingParams::min_p,
                                          &SamplingParams::repetition_penalty, &SamplingParams::presence_penalty}) {
      SamplingParams hostile;
      hostile.*field = odd;
      const auto sampled = sample(logits, hostile, {all, all}, 0, scratch);
      if (sampled) CHECK((sampled.value().token >= 0 && sampled.value().token < 64));
    }
  }
  CHECK(sample(logits, {}, {}, 3, scratch).value().token == token_of(logits, {}, 3));
}

// Fails when the draw goes by the row's number, or by what the scratch held.
TEST_CASE("SMP-04: a row's token depends on nothing but itself: any order of rows, any scratch") {
  std::vector<std::vector<float>> rows;
  std::vector<SamplingParams> params(32);
  std::vector<TokenId> prompt = {1, 2, 3, 3, 40}, output = {9, 9, 12};
  for (uint32_t i = 0; i < 32; ++i) {
    rows.push_back(random_logits(i % 3 == 0 ? 3000 : 777, i, 15));
    params[i].seed = i * 77;
    params[i].temperature = 0.3f * static_cast<float>(i % 5);
    params[i].top_k = i % 4 == 0 ? 20 : 0;
    params[i].top_p = i % 2 == 0 ? 0.9f : 1.0f;
    params[i].repetition_penalty = i % 3 == 1 ? 1.3f : 1.0f;
    params[i].num_logprobs = i % 6 == 0 ? 4 : -1;
    if (i % 7 == 0) params[i].logit_bias = {{5, 3.0f}};
  }
  std::vector<TokenId> alone;
  for (uint32_t i = 0; i < 32; ++i) alone.push_back(token_of(rows[i], params[i], i, {prompt, output}));
  Scratch shared;
  for (uint32_t step = 0; step < 96; ++step) {
    const uint32_t i = step * 13 % 32;
    CHECK(sample(rows[i], params[i], {prompt, output}, i, shared).value().token == alone[i]);
  }
}

TEST_CASE("SMP-05: seed, position and choice each change the draw, and repeat it") {
  const std::vector<float> flat(1000, 0.0f);
  SamplingParams params;
  params.seed = 42;
  const auto stream = [&](uint64_t seed, uint32_t choice) {
    std::vector<TokenId> tokens;
    params.seed = seed;
    params.choice = choice;
    for (uint32_t position = 10; position < 26; ++position) tokens.push_back(token_of(flat, params, position));
    return tokens;
  };
  std::set<std::vector<TokenId>> streams;
  for (uint64_t seed : {1, 2, 3, 4, 5}) {
    for (uint32_t choice : {0, 1, 2, 3}) {
      streams.insert(stream(seed, choice));
      CHECK(stream(seed, choice) == stream(seed, choice));
    }
  }
  CHECK(streams.size() == 20);
  CHECK(stream(uint64_t{1} << 40, 0) != stream(0, 0));  // the seed's upper word counts
}

// Pearson's statistic of `draws` tokens against the probabilities; few expected counts are pooled.
double chi_square(const std::vector<float>& logits, SamplingParams params, uint32_t draws, size_t& degrees) {
  Scratch scratch;
  const auto expected = probabilities(logits, params, {}, scratch);
  REQUIRE(bool(expected));
  std::vector<double> seen(logits.size(), 0.0);
  for (uint32_t position = 0; position < draws; ++position) {
    const auto sampled = sample(logits, params, {}, position, scratch);
    REQUIRE(bool(sampled));
    seen[static_cast<size_t>(sampled.value().token)] += 1;
  }
  double sum = 0, rest_seen = 0, rest_expected = 0;
  degrees = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double want = static_cast<double>(expected.value()[i]) * draws;
    if (want == 0) CHECK(seen[i] == 0);
    if (want < 10) {
      rest_seen += seen[i];
      rest_expected += want;
      continue;
    }
    sum += (seen[i] - want) * (seen[i] - want) / want;
    ++degrees;
  }
  if (rest_expected >= 10) {
    sum += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++degrees;
  }
  --degrees;
  return sum;
}

TEST_CASE("draws follow the probabilities") {
  const std::vector<float> logits = random_logits(300, 6, 6);
  std::vector<SamplingParams> settings(5);
  settings[1].temperature = 0.6f;
  settings[2].top_k = 12;
  settings[3].top_p = 0.8f;
  settings[4].min_p = 0.1f;
  settings[4].top_p = 0.95f;
  settings[4].temperature = 1.4f;
  for (SamplingParams& params : settings) {
    params.seed = 2024;
    size_t degrees = 0;
    const double statistic = chi_square(logits, params, 20000, degrees);
    REQUIRE(degrees >= 3);
    // Mean = degrees, variance = 2 * degrees: five standard deviations above means a wrong distribution.
    const double limit = static_cast<double>(degrees) + 5 * std::sqrt(2.0 * static_cast<double>(degrees));
    CHECK(statistic < limit);
  }
}

TEST_CASE("SMP-06: presence and frequency count the output only, repetition both") {
  const std::vector<float> logits = {3.0f, 2.9f, 1.0f};
  const std::vector<TokenId> prompt = {0, 0, 0}, output = {2};
  SamplingParams params = greedy();
  params.presence_penalty = 2;
  params.frequency_penalty = 2;
  CHECK(token_of(logits, params, 4, {prompt, output}) == 0);
  CHECK(token_of(logits, params, 4, {output, prompt}) == 1);
  params = greedy();
  params.repetition_penalty = 1.1f;
  CHECK(token_of(logits, params, 4, {prompt, output}) == 1);
}

TEST_CASE("SMP-07, SMP-08: repetition acts once per distinct token, over exactly this request's tokens") {
  std::vector<TokenId> ten_times(10, 0);
  const std::vector<TokenId> padding = {-1, 0, 5000};
  const std::vector<float> logits = {1.0f, 0.80f, -1.0f};
  SamplingParams params = greedy();
  params.repetition_penalty = 1.1f;  // once: 0.909, ten times: 0.386
  CHECK(token_of(logits, params, 10, {ten_times, ten_times}) == 0);
  CHECK(token_of(logits, params, 10, {padding, {}}) == 0);
  params.repetition_penalty = 1.3f;  // 0.769
  CHECK(token_of(logits, params, 10, {ten_times, {}}) == 1);
  CHECK(token_of({-1.0f, -1.2f}, params, 1, {ten_times, {}}) == 1);  // a negative logit is multiplied
}

TEST_CASE("logprobs are of the raw logits, ranked by logit and then id") {
  const std::vector<float> logits = {0.5f, 2.0f, 2.0f, -1.0f, -kInfinity};
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  SamplingParams params = greedy();
  params.num_logprobs = 3;
  params.logit_bias = {{3, 100.0f}};  // chosen, though unlikely by the raw logits
  Scratch scratch;
  auto sampled = sample(logits, params, {}, 0, scratch);
  REQUIRE(bool(sampled));
  REQUIRE(sampled->logprob.has_value());
  const TokenLogprob& logprob = *sampled->logprob;
  CHECK(sampled->token == 3);
  CHECK(logprob.rank == 4);
  CHECK(logprob.logprob == doctest::Approx(-1.0 - std::log(sum)).epsilon(1e-5));
  REQUIRE(logprob.top.size() == 3);
  CHECK(logprob.top[0].first == 1);
  CHECK(logprob.top[1].first == 2);
  CHECK(logprob.top[2].first == 0);
  CHECK(logprob.top[0].second == doctest::Approx(2.0 - std::log(sum)).epsilon(1e-5));
  CHECK(token_logprob(logits, 2, 0, scratch).value().rank == 2);
  CHECK(token_logprob(logits, 2, 0, scratch).value().top.empty());
  CHECK(token_logprob(logits, 2, 99, scratch).value().top.size() == 5);
  CHECK_FALSE(bool(token_logprob(logits, 5, 0, scratch)));
}

TEST_CASE("a sparse look at the ranking chooses what a full sort chooses") {
  const std::vector<float> logits = random_logits(5000, 12, 8);
  std::vector<size_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::sort(ids.begin(), ids.end(),
            [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  double total = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  SamplingParams params;
  params.seed = 5;
  for (uint32_t position = 0; position < 500; ++position) {
    const double target = static_cast<double>(uniform_at(5, position, 0)) * total;
    double sum = 0;
    size_t rank = 0;
    for (; rank < ids.size(); ++rank) {
      sum += std::exp(static_cast<double>(logits[ids[rank]]));
      if (sum > target) break;
    }
    // Rounding may move the choice where the target lies within 1e-4 of the edge between two tokens.
    const double own = std::exp(static_cast<double>(logits[ids[rank]]));
    const double margin = std::min(sum - target, target - (sum - own));
    if (margin < 1e-4 * total) continue;
    CHECK(token_of(logits, params, position) == static_cast<TokenId>(ids[rank]));
  }
}

}  // namespace
}  // namespace tandem::sampling
