#pragma once
// GrammarCompiler: from a client's grammar to the masks of its choices. One per process and model; any thread.
//
// The engine behind it takes 0.1 to 0.3 s to build, so it is built with the first grammar. Compiled grammars are kept
// by kind and source, the ones used last, and each choice begins with a copy: a schema that comes again costs nothing.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/result.h"
#include "base/thread_safety.h"
#include "serve/sched/grammar.h"
#include "serve/sched/token_mask.h"
#include "serve/text/tokenizer.h"

namespace tandem::text {

struct GrammarConfig {
  size_t logits_size = 0;           // rows of the output layer
  std::vector<TokenId> stops;       // the model's end tokens
  size_t max_kept = 64;             // compiled grammars; a hostile one takes some 30 MB
  size_t max_kept_bytes = 4 << 20;  // of their sources
  // What a request may cost the engine's thread, which all requests share: masks and commits that take longer than
  // slow_s are added up, and over budget_s the request ends with an error. Usual ones take microseconds.
  double slow_s = 0.005;
  double budget_s = 1.0;
  const Clock* work_clock = nullptr;  // of a thread's own work, so that a busy machine ends nobody; null: the system's
};

using TokenMaskMaker = std::function<std::unique_ptr<sched::TokenMask>()>;  // one request's: a mask for each choice

class GrammarCompiler {
 public:
  // The tokenizer and the registry outlive it. Masks may outlive it.
  GrammarCompiler(const Tokenizer& tokenizer, GrammarConfig config, MetricRegistry& metrics);
  ~GrammarCompiler();

  // Compiles in this thread what is not kept. kInvalidArgument says what is wrong with the grammar, or that this model
  // cannot have any.
  Status check(const sched::Grammar& grammar);
  // The same, and what makes the masks of any number of requests. It holds the compiled grammar: nobody who has it
  // compiles again, however many grammars come meanwhile.
  Result<std::function<TokenMaskMaker()>> compile(const sched::Grammar& grammar);
  // check() would return at once.
  bool is_known(const sched::Grammar& grammar) const;

  // Makes the masks of one request's choices, which share its budget. A mask compiles at its first use what is not
  // kept; what is wrong comes as its error.
  TokenMaskMaker masks_of(const sched::Grammar& grammar);
  // The same, where the caller's thread has no time to compile: that begins at once on a thread of its own, and the
  // masks are not ready until it is done.
  TokenMaskMaker masks_ahead(const sched::Grammar& grammar);
  // Begins that thread and with it the engine, so that the first grammar does not wait for it.
  void begin();

 private:
  struct Meters;
  class Engine;  // built when first asked for
  class Entry;   // a grammar, and what became of it
  class Mask;
  using Key = std::pair<sched::GrammarKind, std::string>;

  static TokenMaskMaker make_masks(std::shared_ptr<Entry> entry, bool is_ahead, std::shared_ptr<Meters> meters);
  std::shared_ptr<Entry> entry_of(const sched::Grammar& grammar);
  void forget_oldest() REQUIRES(mutex_);
  void run();

  const GrammarConfig config_;
  const std::shared_ptr<Meters> meters_;
  const std::shared_ptr<Engine> engine_;

  mutable Mutex mutex_;
  std::list<std::shared_ptr<Entry>> kept_ GUARDED_BY(mutex_);  // used last first
  std::map<Key, std::list<std::shared_ptr<Entry>>::iterator> by_key_ GUARDED_BY(mutex_);
  size_t kept_bytes_ GUARDED_BY(mutex_) = 0;
  std::optional<std::thread> thread_ GUARDED_BY(mutex_);  // of masks_ahead()
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  BoundedQueue<std::shared_ptr<Entry>> wanted_;
};

}  // namespace tandem::text
