#include "compute/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "compute/sampling/penalties.h"
#include "compute/sampling/philox.h"
#include "compute/sampling/ranking.h"
#include "compute/sampling/softmax.h"

namespace tandem::sampling {
namespace {

// The row that filters and draws work on, with its largest value.
struct Row {
  std::span<const float> values;
  float max = 0;
};

Result<Row> changed_row(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                        Scratch& scratch) {
  TRY_ASSIGN(const float max, checked_max(logits));
  if (leaves_logits(params, history)) return Row{logits, max};
  TRY(apply_penalties(logits, params, history, scratch));
  auto changed_max = checked_max(scratch.values);
  if (changed_max) return Row{scratch.values, *changed_max};
  const auto is_out = [](float value) { return value == -INFINITY; };
  if (std::ranges::all_of(scratch.values, is_out)) {  // the model's own were good
    return Error{ErrorCode::kInvalidArgument, "what the request bans and allows leaves no token to choose"};
  }
  return std::move(changed_max).error().during("after penalties and bans");
}

TokenId first_of(const Row& row) {
  return static_cast<TokenId>(std::find(row.values.begin(), row.values.end(), row.max) - row.values.begin());
}

// What the filters leave: the first `count` of the ranking, whose weights sum to `total`.
struct Cut {
  size_t count = SIZE_MAX;
  float total = 0;
};

void compute_weights(const Row& row, const SamplingParams& params, Scratch& scratch) {
  scratch.exponents.resize(row.values.size());
  scratch.weights.resize(row.values.size());
  softmax_weights(row.values, row.max, params.temperature, scratch.exponents, scratch.weights);
  if (params.min_p <= 0) return;
  for (float& weight : scratch.weights) {
    if (weight < params.min_p) weight = 0;  // the best token's weight is 1
  }
}

Cut cut_tokens(const SamplingParams& params, std::span<const float> weights, Ranking& ranking) {
  Cut cut;
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(weights.size())) {
    ranking.keep_best(static_cast<size_t>(params.top_k));
    for (cut.count = 0; ranking.has(cut.count); ++cut.count) cut.total += weights[ranking.token(cut.count)];
  } else {
    cut.total = vocabulary_sum(weights);
  }
  if (params.top_p < 1.0f) {
    const float enough = params.top_p * cut.total;
    ranking.expect_mass(enough);
    size_t count = 0;
    float sum = 0;
    for (; count < cut.count && (count == 0 || sum < enough) && ranking.has(count); ++count) {
      sum += weights[ranking.token(count)];
    }
    cut = {count, sum};
  }
  return cut;
}

TokenId draw(const Cut& cut, float u, std::span<const float> weights, Ranking& ranking) {
  const float target = u * cut.total;
  ranking.expect_mass(target);
  TokenId token = ranking.has(0) ? ranking.token(0) : 0;
  float sum = 0;
  for (size_t rank = 0; rank < cut.count && ranking.has(rank); ++rank) {
    token = ranking.token(rank);
    sum += weights[token];
    if (sum > target) break;
  }
  return token;
}

Error out_of_range(const char* field, double value, const char* range) {
  return {ErrorCode::kInvalidArgument, fmt::format("{} must be {}, got {}", field, range, value)};
}

// Written so that NaN is outside.
bool is_within(double value, double low, double high) { return value >= low && value <= high; }

Status validate_tokens(const SamplingParams& params, uint32_t vocabulary_size) {
  const auto is_token = [&](TokenId id) { return id >= 0 && static_cast<uint32_t>(id) < vocabulary_size; };
  for (const auto& [token, bias] : params.logit_bias) {
    if (!is_token(token)) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("logit_bias: token {} is outside the vocabulary (0 to {})", token, vocabulary_size - 1)};
    }
    if (!is_within(bias, -100, 100)) return out_of_range("logit_bias", bias, "between -100 and 100");
  }
  const auto check = [&](std::span<const TokenId> tokens) -> Status {
    const auto bad = std::ranges::find_if_not(tokens, is_token);
    if (bad == tokens.end()) return Done{};
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("token {} is outside the vocabulary (0 to {})", *bad, vocabulary_size - 1)};
  };
  TRY(check(params.banned));
  TRY(check(params.allowed));
  if (!std::ranges::is_sorted(params.allowed)) {
    return Error{ErrorCode::kInvalidArgument, "allowed tokens are not in rising order"};
  }
  for (const std::vector<TokenId>& word : params.bad_words) TRY(check(word));
  return Done{};
}

}  // namespace

Status validate(const SamplingParams& params, uint32_t vocabulary_size) {
  if (!is_within(params.temperature, 0, 100)) {
    return out_of_range("temperature", params.temperature, "between 0 and 100");
  }
  if (params.top_k < -1) {
    return out_of_range("top_k", static_cast<double>(params.top_k), "-1 or 0 (off), or at least 1");
  }
  if (!is_within(params.top_p, 0, 1)) return out_of_range("top_p", params.top_p, "between 0 and 1");
  if (!is_within(params.min_p, 0, 1)) return out_of_range("min_p", params.min_p, "between 0 and 1");
  if (!is_within(params.repetition_penalty, 0.01, 100)) {
    return out_of_range("repetition_penalty", params.repetition_penalty, "between 0.01 and 100");
  }
  if (!is_within(params.presence_penalty, -2, 2)) {
    return out_of_range("presence_penalty", params.presence_penalty, "between -2 and 2");
  }
  if (!is_within(params.frequency_penalty, -2, 2)) {
    return out_of_range("frequency_penalty", params.frequency_penalty, "between -2 and 2");
  }
  if (params.num_logprobs < -1 || params.num_logprobs > static_cast<int64_t>(vocabulary_size)) {
    return out_of_range("logprobs", params.num_logprobs, "between 0 and the size of the vocabulary");
  }
  return validate_tokens(params, vocabulary_size);
}

Result<Sampled> sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                       uint32_t position, Scratch& scratch) {
  TRY_ASSIGN(const Row row, changed_row(logits, params, history, scratch));
  Sampled sampled;
  if (!(params.temperature >= kGreedyBelow)) {
    sampled.token = first_of(row);
  } else {
    compute_weights(row, params, scratch);
    Ranking ranking(row.values, scratch.exponents, scratch.weights, scratch.order);
    const Cut cut = cut_tokens(params, scratch.weights, ranking);
    sampled.token = draw(cut, uniform_at(params.seed, position, params.choice), scratch.weights, ranking);
  }
  if (params.num_logprobs >= 0) {
    TRY_ASSIGN(sampled.logprob,
               token_logprob(logits, sampled.token, static_cast<uint32_t>(params.num_logprobs), scratch));
  }
  return sampled;
}

Result<std::vector<float>> probabilities(std::span<const float> logits, const SamplingParams& params,
                                         const TokenHistory& history, Scratch& scratch) {
  TRY_ASSIGN(const Row row, changed_row(logits, params, history, scratch));
  std::vector<float> result(logits.size(), 0.0f);
  if (!(params.temperature >= kGreedyBelow)) {
    result[first_of(row)] = 1.0f;
    return result;
  }
  compute_weights(row, params, scratch);
  Ranking ranking(row.values, scratch.exponents, scratch.weights, scratch.order);
  const Cut cut = cut_tokens(params, scratch.weights, ranking);
  for (size_t rank = 0; rank < cut.count && ranking.has(rank); ++rank) {
    const TokenId token = ranking.token(rank);
    result[token] = scratch.weights[token] / cut.total;
  }
  return result;
}

Result<TokenLogprob> token_logprob(std::span<const float> logits, TokenId token, uint32_t num_top, Scratch& scratch) {
  if (token < 0 || static_cast<size_t>(token) >= logits.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("token {} is outside the vocabulary of {}", token, logits.size())};
  }
  TRY_ASSIGN(const float max, checked_max(logits));
  scratch.exponents.resize(logits.size());
  scratch.weights.resize(logits.size());
  softmax_weights(logits, max, 1.0f, scratch.exponents, scratch.weights);
  // The logarithm is libm's, in double: it is reported and chooses nothing.
  const double log_sum = std::log(static_cast<double>(vocabulary_sum(scratch.weights)));
  const auto logprob_of = [&](TokenId id) {
    return static_cast<float>(static_cast<double>(logits[id]) - max - log_sum);
  };

  TokenLogprob result{token, logprob_of(token), 1, {}};
  const uint64_t own_key = rank_key(logits[token], static_cast<size_t>(token));
  // A heap of the best keys, the worst of them on top.
  std::vector<uint64_t>& best = scratch.order;
  best.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t key = rank_key(logits[i], i);
    result.rank += static_cast<uint32_t>(key < own_key);
    if (best.size() < num_top) {
      best.push_back(key);
      std::push_heap(best.begin(), best.end());
    } else if (num_top > 0 && key < best.front()) {
      std::pop_heap(best.begin(), best.end());
      best.back() = key;
      std::push_heap(best.begin(), best.end());
    }
  }
  std::sort_heap(best.begin(), best.end());
  result.top.reserve(best.size());
  for (const uint64_t key : best) result.top.emplace_back(token_of(key), logprob_of(token_of(key)));
  return result;
}

}  // namespace tandem::sampling
