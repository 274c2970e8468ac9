#pragma once
// CountedMask: a grammar for tests, without a tokenizer: what may come depends on all tokens before.

#include <memory>
#include <optional>
#include <vector>

#include "serve/sched/request.h"

namespace tandem::sched {

struct CountedMaskRule {
  uint32_t vocab = 1000;
  uint32_t num_tokens = 1u << 30;              // then it is over
  std::optional<uint32_t> mask_fails_at = {};  // with so many tokens committed
  std::optional<uint32_t> commit_fails_at = {};
  uint32_t* num_masks = nullptr;  // computed ones are counted here
};

class CountedMask final : public TokenMask {
 public:
  explicit CountedMask(CountedMaskRule rule) : rule_(rule) {}

  // Every seventh token, beginning with one that the tokens so far decide. Never 0 to 6.
  static bool may_come(TokenId token, uint64_t hash) {
    return token >= 7 && static_cast<uint64_t>(token) % 7 == hash % 7;
  }
  static uint64_t extend(uint64_t hash, TokenId token) { return hash * 31 + static_cast<uint64_t>(token) + 1; }
  // Whether each of `tokens` might come.
  static bool accepts(const std::vector<TokenId>& tokens) {
    uint64_t hash = 0;
    for (const TokenId token : tokens) {
      if (!may_come(token, hash)) return false;
      hash = extend(hash, token);
    }
    return true;
  }

  Result<std::span<const uint32_t>> allowed() override {
    if (rule_.mask_fails_at == num_committed_) return Error{ErrorCode::kInvalidArgument, "the mask fails"};
    if (words_.empty()) {
      if (rule_.num_masks != nullptr) ++*rule_.num_masks;
      words_.resize((rule_.vocab + 31) / 32);
      for (uint32_t id = 0; id < rule_.vocab; ++id) {
        if (may_come(static_cast<TokenId>(id), hash_)) words_[id / 32] |= 1u << (id % 32);
      }
    }
    return std::span<const uint32_t>(words_);
  }

  Status commit(TokenId token) override {
    if (rule_.commit_fails_at == num_committed_) return Error{ErrorCode::kInvalidArgument, "the commit fails"};
    hash_ = extend(hash_, token);
    ++num_committed_;
    words_.clear();
    return Done{};
  }

  bool is_over() const override { return num_committed_ >= rule_.num_tokens; }

 private:
  const CountedMaskRule rule_;
  uint64_t hash_ = 0;
  uint32_t num_committed_ = 0;
  std::vector<uint32_t> words_;
};

inline void add_mask(Request& request, CountedMaskRule rule = {}) {
  request.grammar = Grammar{GrammarKind::kRegex, "counted"};
  request.make_token_mask = [rule] { return std::make_unique<CountedMask>(rule); };
}

}  // namespace tandem::sched
