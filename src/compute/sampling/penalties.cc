#include "compute/sampling/penalties.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tandem::sampling {
namespace {

constexpr uint32_t kIsDone = uint32_t{1} << 31;  // marks a token of the history whose logit is changed already

bool has_penalty(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f;
}

bool is_inside(TokenId token, size_t vocabulary_size) {
  return token >= 0 && static_cast<size_t>(token) < vocabulary_size;
}

void apply_history(const SamplingParams& params, const TokenHistory& history, Scratch& scratch) {
  std::vector<uint32_t>& counts = scratch.counts;
  const size_t vocabulary_size = scratch.values.size();
  if (counts.size() < vocabulary_size) counts.resize(vocabulary_size, 0);
  for (const TokenId token : history.output) {
    if (is_inside(token, vocabulary_size)) ++counts[token];
  }
  for (const auto& tokens : {history.prompt, history.output}) {
    for (const TokenId token : tokens) {
      if (!is_inside(token, vocabulary_size) || (counts[token] & kIsDone) != 0) continue;
      float x = scratch.values[token];
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
      if (counts[token] > 0) {
        x -= params.frequency_penalty * static_cast<float>(counts[token]);
        x -= params.presence_penalty;
      }
      scratch.values[token] = x;
      counts[token] |= kIsDone;
    }
  }
  for (const auto& tokens : {history.prompt, history.output}) {
    for (const TokenId token : tokens) {
      if (is_inside(token, vocabulary_size)) counts[token] = 0;
    }
  }
}

// A word at a time: most words of a mask are all ones or all zeros.
void apply_mask(std::span<const uint32_t> allowed, std::vector<float>& values) {
  for (size_t first = 0; first < values.size(); first += 32) {
    const uint32_t word = first / 32 < allowed.size() ? allowed[first / 32] : 0;
    if (word == UINT32_MAX) continue;
    const size_t end = std::min(first + 32, values.size());
    for (size_t i = first; i < end; ++i) {
      if ((word >> (i - first) & 1) == 0) values[i] = -INFINITY;
    }
  }
}

// `allowed` is in rising order.
void keep_allowed(std::span<const TokenId> allowed, std::span<float> values) {
  auto next = allowed.begin();
  for (size_t token = 0; token < values.size(); ++token) {
    if (next != allowed.end() && static_cast<size_t>(*next) == token) {
      ++next;
    } else {
      values[token] = -INFINITY;
    }
  }
}

// A word's last token is banned where the output ends in the tokens before it.
void ban_bad_words(std::span<const std::vector<TokenId>> words, std::span<const TokenId> output,
                   std::span<float> values) {
  for (const std::vector<TokenId>& word : words) {
    if (word.empty() || !is_inside(word.back(), values.size()) || output.size() + 1 < word.size()) continue;
    const auto before = std::span(word).first(word.size() - 1);
    if (std::ranges::equal(output.last(before.size()), before)) values[word.back()] = -INFINITY;
  }
}

}  // namespace

bool leaves_logits(const SamplingParams& params, const TokenHistory& history) {
  return params.logit_bias.empty() && params.banned.empty() && params.allowed.empty() && params.bad_words.empty() &&
         history.allowed.empty() && !has_penalty(params);
}

Status apply_penalties(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                       Scratch& scratch) {
  scratch.values.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) {
    if (!is_inside(token, logits.size())) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("logit_bias: token {} is outside the vocabulary of {}", token, logits.size())};
    }
    scratch.values[token] += bias;
  }
  if (has_penalty(params)) apply_history(params, history, scratch);
  for (const TokenId token : params.banned) {
    if (!is_inside(token, logits.size())) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("banned token {} is outside the vocabulary of {}", token, logits.size())};
    }
    scratch.values[token] = -INFINITY;
  }
  if (!history.allowed.empty()) apply_mask(history.allowed, scratch.values);
  if (!params.allowed.empty()) keep_allowed(params.allowed, scratch.values);
  ban_bad_words(params.bad_words, history.output, scratch.values);
  return Done{};
}

}  // namespace tandem::sampling
