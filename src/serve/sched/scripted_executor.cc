#include "serve/sched/scripted_executor.h"

#include <algorithm>
#include <functional>

namespace tandem::sched {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 31);
}

uint64_t extend(uint64_t prefix_hash, TokenId token) { return mix(prefix_hash + 1, static_cast<uint32_t>(token)); }

}  // namespace

ScriptedExecutor::ScriptedExecutor(const ScriptedConfig& config)
    : config_(config), slots_(static_cast<size_t>(config.num_blocks) * config.block_size) {}

void ScriptedExecutor::set_script(std::vector<TokenId> prompt, std::vector<TokenId> output) {
  scripts_.insert_or_assign(std::move(prompt), std::move(output));
}

bool ScriptedExecutor::is_hanging() const {
  Lock lock(mutex_);
  return is_hanging_;
}

void ScriptedExecutor::release_hang() {
  Lock lock(mutex_);
  is_hanging_ = false;
  released_.notify_all();
}

void ScriptedExecutor::wait_while_hanging() {
  Lock lock(mutex_);
  is_hanging_ = true;
  while (is_hanging_) released_.wait(mutex_);
}

ScriptedExecutor::Slot& ScriptedExecutor::slot(const BatchItem& item, uint32_t position) {
  const uint32_t block = kv::index(item.blocks[position / config_.block_size]);
  return slots_[static_cast<size_t>(block) * config_.block_size + position % config_.block_size];
}

// What is wrong with the item itself, whatever the KV holds.
std::optional<std::string> ScriptedExecutor::fault_in(const BatchItem& item) const {
  const uint64_t end = uint64_t{item.begin} + item.count;
  if (item.count == 0 || end > item.tokens.size()) return "computes tokens that it does not have";
  if (item.samples && end != item.tokens.size()) return "samples before its last token";
  if (!item.sampling) return "has no sampling parameters";
  if (item.blocks.size() * config_.block_size < end) return "has too few blocks";
  for (const kv::BlockId block : item.blocks) {
    if (kv::index(block) >= config_.num_blocks) return "names a block outside the pool";
  }
  return std::nullopt;
}

Result<StepOutcome> ScriptedExecutor::execute(const Batch& batch) {
  const uint64_t step = num_steps_++;
  if (observer_) observer_(step, batch);
  if (hanging_step_ == step) wait_while_hanging();
  if (const auto failing = failing_steps_.find(step); failing != failing_steps_.end()) return failing->second;
  for (const BatchItem& item : batch.items) {
    if (const auto fault = fault_in(item)) {
      const std::string name = std::to_string(static_cast<uint64_t>(item.sequence));
      return Error{ErrorCode::kInternal, "sequence " + name + " " + *fault};
    }
    const auto computed = item.tokens.subspan(item.begin, item.count);
    if (poison_ && std::ranges::find(computed, *poison_) != computed.end()) {
      return Error{ErrorCode::kInternal, "scripted failure of the step"};
    }
  }
  for (const BlockCopy& copy : batch.copies) {
    const auto from = slots_.begin() + static_cast<ptrdiff_t>(kv::index(copy.from)) * config_.block_size;
    std::copy_n(from, config_.block_size,
                slots_.begin() + static_cast<ptrdiff_t>(kv::index(copy.to)) * config_.block_size);
  }
  // What this step writes is unreadable until the item that writes it is computed.
  StepOutcome outcome;
  outcome.items.resize(batch.items.size());
  for (const BatchItem& item : batch.items) {
    for (uint32_t p = item.begin; p < item.begin + item.count; ++p) {
      Slot& at = slot(item, p);
      if (at.written_in == num_steps_) return Error{ErrorCode::kInternal, "two items write one KV slot"};
      at.is_written = false;
      at.written_in = num_steps_;
    }
  }
  for (size_t i = 0; i < batch.items.size(); ++i) TRY(compute(batch.items[i], outcome.items[i]));
  return outcome;
}

Status ScriptedExecutor::compute(const BatchItem& item, ItemOutcome& outcome) {
  const auto computed = item.tokens.subspan(item.begin, item.count);
  if (item_poison_ && std::ranges::find(computed, *item_poison_) != computed.end()) {
    outcome.error = Error{ErrorCode::kInternal, "scripted failure of the item"};
    return Done{};
  }
  uint64_t hash = 0;
  outcome.pooled.assign(item.pooled.begin(), item.pooled.end());
  for (uint32_t p = 0; p < item.begin + item.count; ++p) {
    hash = extend(hash, item.tokens[p]);
    Slot& at = slot(item, p);
    if (p < item.begin) {
      if (at.is_written && at.prefix_hash == hash) continue;
      return Error{ErrorCode::kInternal, "sequence " + std::to_string(static_cast<uint64_t>(item.sequence)) +
                                             " reads position " + std::to_string(p) + ", whose KV slot " +
                                             (at.is_written ? "holds another prefix" : "is not computed")};
    }
    at.is_written = true;
    at.prefix_hash = hash;
    if (item.prompt_logprobs >= 0 && p + 1 < item.num_prompt_tokens) {
      outcome.prompt_logprobs.push_back(logprob_of(hash, item.tokens[p + 1], item.prompt_logprobs));
    }
    if (item.pooling == Pooling::kNone) continue;
    const std::vector<double> hidden = hidden_of(hash);
    if (item.pooling == Pooling::kLast || outcome.pooled.empty()) {
      outcome.pooled = hidden;
    } else {
      std::ranges::transform(outcome.pooled, hidden, outcome.pooled.begin(), std::plus());
    }
  }
  if (!item.samples) return Done{};
  auto chosen = choose(item, hash);
  if (!chosen) {
    outcome.error = std::move(chosen).error();
    return Done{};
  }
  outcome.token = *chosen;
  const int32_t num_logprobs = item.sampling->num_logprobs;
  if (num_logprobs >= 0) outcome.logprob = logprob_of(hash, outcome.token, num_logprobs);
  return Done{};
}

Result<TokenId> ScriptedExecutor::choose(const BatchItem& item, uint64_t prefix_hash) const {
  std::span<const uint32_t> mask;
  if (item.mask != nullptr) {
    TRY_ASSIGN(mask, item.mask->allowed());
  }
  if (next_token_) return next_token_(item);
  const auto prompt = item.tokens.first(item.num_prompt_tokens);
  if (!scripts_.empty()) {
    const auto script = scripts_.find(std::vector<TokenId>(prompt.begin(), prompt.end()));
    if (script != scripts_.end() && !script->second.empty()) {
      return script->second[std::min(item.tokens.size() - prompt.size(), script->second.size() - 1)];
    }
  }
  const auto range = static_cast<uint64_t>(config_.vocab_size - static_cast<uint32_t>(config_.first_token));
  const uint64_t key = mix(mix(prefix_hash, item.sampling->seed), item.sampling->choice);
  // The first that is allowed and not banned, from a place that the prefix decides.
  for (uint64_t i = 0; i < range; ++i) {
    const TokenId token = config_.first_token + static_cast<TokenId>((key + i) % range);
    if (item.mask != nullptr && !is_allowed(mask, token)) continue;
    if (std::ranges::find(item.sampling->banned, token) == item.sampling->banned.end()) return token;
  }
  if (item.mask != nullptr) return Error{ErrorCode::kInvalidArgument, "the grammar and the bans leave no token"};
  return config_.first_token;
}

// A hidden state that the prefix alone decides; its length is as good as any.
std::vector<double> ScriptedExecutor::hidden_of(uint64_t prefix_hash) {
  std::vector<double> hidden;
  for (uint64_t i = 0; i < 8; ++i) hidden.push_back(static_cast<float>(mix(prefix_hash, i) % 2001) / 1000.0 - 1);
  return hidden;
}

TokenLogprob ScriptedExecutor::logprob_of(uint64_t prefix_hash, TokenId token, int32_t num_top) const {
  const auto value = [prefix_hash](TokenId t) {
    return -static_cast<float>(mix(prefix_hash, static_cast<uint32_t>(t)) % 1000) / 50;
  };
  TokenLogprob logprob{token, value(token), 1, {}};
  for (int32_t k = 0; k < num_top && k < static_cast<int32_t>(config_.vocab_size); ++k) {
    logprob.top.emplace_back(k, value(k));
  }
  std::ranges::sort(logprob.top, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return logprob;
}

}  // namespace tandem::sched
