#pragma once
// ScriptedExecutor: a StepExecutor without a model, for tests and demonstrations of everything above it.
//
// Tokens come from a script per prompt or, without one, from a hash of all tokens before, so that a request's answer
// does not depend on how it was batched. It also keeps a shadow of every KV slot (a hash of the tokens up to there)
// and fails the step when an item would read a slot that does not hold its own prefix: that catches blocks published
// before they are computed, freed too early, shared wrongly or not copied.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_safety.h"
#include "serve/sched/batch.h"

namespace tandem::sched {

struct ScriptedConfig {
  uint32_t num_blocks = 0;
  uint32_t block_size = 16;
  uint32_t vocab_size = 1000;
  TokenId first_token = 0;  // hashed tokens are in [first_token, vocab_size)
};

class ScriptedExecutor final : public StepExecutor {
 public:
  explicit ScriptedExecutor(const ScriptedConfig& config);

  Result<StepOutcome> execute(const Batch& batch) override;

  // The output for exactly this prompt (any choice); after its end the last token again.
  void set_script(std::vector<TokenId> prompt, std::vector<TokenId> output);

  // Replaces scripts and hashing: the next token from the item (its tokens so far, its sampling).
  void set_next_token(std::function<TokenId(const BatchItem&)> next_token) { next_token_ = std::move(next_token); }

  // Step `step` (the first call of execute() is step 0) fails as a whole.
  void fail_step(uint64_t step, Error error) { failing_steps_.insert_or_assign(step, std::move(error)); }

  // Every step fails that has an item with this token among those it computes / only that item fails.
  void fail_steps_with(TokenId token) { poison_ = token; }
  void fail_items_with(TokenId token) { item_poison_ = token; }

  // execute() of this step does not return until release_hang(). Any thread may release.
  void hang_at_step(uint64_t step) { hanging_step_ = step; }
  bool is_hanging() const;
  void release_hang();

  // Called at the start of each step, to record batches or to let a clock run.
  void set_observer(std::function<void(uint64_t step, const Batch& batch)> observer) {
    observer_ = std::move(observer);
  }

  uint64_t num_steps() const { return num_steps_; }

 private:
  struct Slot {
    bool is_written = false;
    uint64_t prefix_hash = 0;
    uint64_t written_in = 0;  // the step, from 1
  };

  Slot& slot(const BatchItem& item, uint32_t position);
  std::optional<std::string> fault_in(const BatchItem& item) const;
  Status compute(const BatchItem& item, ItemOutcome& outcome);
  Result<TokenId> choose(const BatchItem& item, uint64_t prefix_hash) const;
  static std::vector<double> hidden_of(uint64_t prefix_hash);
  TokenLogprob logprob_of(uint64_t prefix_hash, TokenId token, int32_t num_top) const;
  void wait_while_hanging();

  ScriptedConfig config_;
  std::vector<Slot> slots_;  // by block and offset
  std::map<std::vector<TokenId>, std::vector<TokenId>> scripts_;
  std::function<TokenId(const BatchItem&)> next_token_;
  std::function<void(uint64_t, const Batch&)> observer_;
  std::map<uint64_t, Error> failing_steps_;
  std::optional<TokenId> poison_;
  std::optional<TokenId> item_poison_;
  std::optional<uint64_t> hanging_step_;
  uint64_t num_steps_ = 0;
  mutable Mutex mutex_;
  CondVar released_;
  bool is_hanging_ GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::sched
