#pragma once
// Constrained decoding: a grammar and the tokens so far say which tokens may come next. The engine is built
// once per model (0.1 to 0.3 s for 50k to 150k tokens) and shared by all threads; a constraint belongs to one
// choice, one thread at a time. Grammars come from clients: their size, depth and cost are bounded, and one
// may still fail at any mask() or commit(), which ends that request and no other.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"
#include "serve/sched/grammar.h"
#include "serve/text/tokenizer.h"

extern "C" {
struct tt_engine;
struct tt_constraint;
}

namespace tandem::text {

using sched::GrammarKind;

// After a failed call, only destroy it.
class Constraint {
 public:
  Constraint(Constraint&&) noexcept = default;
  Constraint& operator=(Constraint&&) noexcept = default;

  // An independent copy, which another thread may use while this one is in use.
  Result<Constraint> clone() const;

  // Sets bit (id % 32) of word (id / 32) for each token that may come next; at the end only stop tokens.
  // words: at least ConstraintEngine::mask_words().
  Status mask(uint32_t* mask, size_t words);
  Status commit(const std::vector<TokenId>& ids);
  // How many of ids could be committed one after the other; commits nothing.
  Result<size_t> validate(const std::vector<TokenId>& ids);
  // Takes back the last n tokens.
  Status rollback(size_t n);
  // Tokens that the grammar leaves no choice about, perhaps none.
  Result<std::vector<TokenId>> forced();
  bool is_accepting();       // the reply may end here
  bool is_stopped() const;  // it must

 private:
  friend class ConstraintEngine;
  struct Free {
    void operator()(tt_constraint* handle) const;
  };
  explicit Constraint(tt_constraint* handle) : handle_(handle) {}

  std::unique_ptr<tt_constraint, Free> handle_;
};

class ConstraintEngine {
 public:
  // logits_size: rows of the output layer, which may exceed the vocabulary. stops: the tokens that may end a
  // reply, at least one. Keeps what it needs of the tokenizer.
  static Result<ConstraintEngine> create(const Tokenizer& tokenizer, size_t logits_size,
                                         const std::vector<TokenId>& stops);

  ConstraintEngine(ConstraintEngine&&) noexcept = default;
  ConstraintEngine& operator=(ConstraintEngine&&) noexcept = default;

  size_t mask_words() const;
  // kInvalidArgument for a grammar that is wrong or over a bound. The constraint outlives the engine.
  Result<Constraint> compile(GrammarKind kind, std::string_view source) const;

 private:
  struct Free {
    void operator()(tt_engine* handle) const;
  };
  explicit ConstraintEngine(tt_engine* handle) : handle_(handle) {}

  std::unique_ptr<tt_engine, Free> handle_;
};

}  // namespace tandem::text
