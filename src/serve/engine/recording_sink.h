#pragma once
// RecordingSink: keeps all updates of one request, for tests. Any thread may read once is_done().

#include <atomic>
#include <map>
#include <vector>

#include "serve/sched/request.h"

namespace tandem::engine {

class RecordingSink final : public sched::TokenSink {
 public:
  void publish(sched::Update update) override {
    for (const sched::ChoiceDelta& delta : update.deltas) {
      auto& tokens = tokens_[delta.choice];
      tokens.insert(tokens.end(), delta.tokens.begin(), delta.tokens.end());
      if (delta.finish) finishes_[delta.choice] = *delta.finish;
    }
    const bool is_last = update.is_last;
    updates_.push_back(std::move(update));
    if (is_last) is_done_.store(true, std::memory_order_release);
  }

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  const std::vector<sched::Update>& updates() const { return updates_; }
  const std::vector<TokenId>& tokens(uint32_t choice = 0) { return tokens_[choice]; }
  std::optional<sched::Finish> finish(uint32_t choice = 0) const {
    const auto found = finishes_.find(choice);
    return found == finishes_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<Error> error() const { return updates_.empty() ? std::nullopt : updates_.back().error; }

 private:
  std::vector<sched::Update> updates_;
  std::map<uint32_t, std::vector<TokenId>> tokens_;
  std::map<uint32_t, sched::Finish> finishes_;
  std::atomic<bool> is_done_{false};
};

}  // namespace tandem::engine
