#include "serve/text/grammar_compiler.h"

#include <ctime>

#include <atomic>

#include "base/log.h"
#include "serve/text/constraint.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxWanted = 256;
constexpr double kIdleWait_s = 60;

const std::vector<double> kMaskSeconds = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4,
                                          .001, .002, .005, .01,  .02,  .05,  .1,   1};
const std::vector<double> kCompileSeconds = {.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5};

// The time that the calling thread has worked.
class ThreadClock final : public Clock {
 public:
  int64_t now_ns() const override {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

double seconds_since(const Clock& clock, int64_t begin_ns) {
  return static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
}

}  // namespace

// What all masks of a compiler measure, and by which clock.
struct GrammarCompiler::Meters {
  Meters(const GrammarConfig& config, MetricRegistry& metrics)
      : slow_s(config.slow_s),
        budget_s(config.budget_s),
        work_clock(config.work_clock != nullptr ? *config.work_clock : own_work_clock),
        mask_seconds(metrics.histogram("tandem_grammar_mask_seconds", "Computing the mask of a grammar's next token.",
                                       kMaskSeconds)),
        compile_seconds(metrics.histogram("tandem_grammar_compile_seconds", "Compiling a grammar.", kCompileSeconds)),
        compile_failures(failures(metrics, "compile")),
        mask_failures(failures(metrics, "mask")),
        commit_failures(failures(metrics, "commit")),
        budget_failures(failures(metrics, "budget")) {}

  static Counter& failures(MetricRegistry& metrics, const char* stage) {
    return metrics.counter("tandem_grammar_failures_total", "Grammars that failed, by where.", {{"stage", stage}});
  }

  const double slow_s, budget_s;
  const ThreadClock own_work_clock;
  const Clock& work_clock;
  const SystemClock clock;
  HistogramMetric& mask_seconds;
  HistogramMetric& compile_seconds;
  Counter &compile_failures, &mask_failures, &commit_failures, &budget_failures;
};

class GrammarCompiler::Engine {
 public:
  Engine(const Tokenizer& tokenizer, const GrammarConfig& config)
      : tokenizer_(tokenizer), logits_size_(config.logits_size), stops_(config.stops) {}

  Result<const ConstraintEngine*> get() {
    Lock lock(mutex_);
    if (!built_) {
      const SystemClock clock;
      const int64_t begin_ns = clock.now_ns();
      built_.emplace(ConstraintEngine::create(tokenizer_, logits_size_, stops_));
      log_info("serve/text", "ready for grammars", {{"ms", std::to_string(seconds_since(clock, begin_ns) * 1e3)}});
    }
    const ConstraintEngine* engine = *built_ ? &**built_ : nullptr;
    if (engine != nullptr) return engine;
    Error error = built_->error();
    return std::move(error).during("this model cannot have grammars");
  }

 private:
  const Tokenizer& tokenizer_;
  const size_t logits_size_;
  const std::vector<TokenId> stops_;
  Mutex mutex_;
  std::optional<Result<ConstraintEngine>> built_ GUARDED_BY(mutex_);
};

class GrammarCompiler::Entry {
 public:
  Entry(sched::Grammar grammar, std::shared_ptr<Engine> engine, std::shared_ptr<Meters> meters)
      : grammar_(std::move(grammar)), engine_(std::move(engine)), meters_(std::move(meters)) {}

  const sched::Grammar& grammar() const { return grammar_; }
  bool is_compiled() const { return is_compiled_.load(std::memory_order_acquire); }

  // Once; whoever comes meanwhile waits.
  Status compile() {
    Lock lock(mutex_);
    compile_once();
    if (!*compiled_) return compiled_->error();
    return Done{};
  }

  Result<Constraint> copy() {
    Lock lock(mutex_);
    compile_once();
    if (!*compiled_) return compiled_->error();
    return (*compiled_)->clone();
  }

  size_t num_mask_words() const { return num_mask_words_; }  // after a copy

 private:
  void compile_once() REQUIRES(mutex_) {
    if (compiled_) return;
    const auto engine = engine_->get();
    if (!engine) {
      compiled_.emplace(engine.error());
    } else {
      num_mask_words_ = engine.value()->mask_words();
      const int64_t begin_ns = meters_->clock.now_ns();
      compiled_.emplace(engine.value()->compile(grammar_.kind, grammar_.source));
      meters_->compile_seconds.observe(seconds_since(meters_->clock, begin_ns));
    }
    if (!*compiled_) meters_->compile_failures.add();
    is_compiled_.store(true, std::memory_order_release);
  }

  const sched::Grammar grammar_;
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Meters> meters_;
  std::atomic<bool> is_compiled_{false};
  std::atomic<size_t> num_mask_words_{0};
  Mutex mutex_;  // held while it compiles
  std::optional<Result<Constraint>> compiled_ GUARDED_BY(mutex_);
};

// One choice's. What comes before the first allowed() is only noted: so a request that goes on after another node's
// death, or that is still in its prompt, waits for no compilation.
class GrammarCompiler::Mask final : public sched::TokenMask {
 public:
  Mask(std::shared_ptr<Entry> entry, bool is_ahead, std::shared_ptr<Meters> meters, std::shared_ptr<double> slow_work_s)
      : entry_(std::move(entry)),
        is_ahead_(is_ahead),
        meters_(std::move(meters)),
        slow_work_s_(std::move(slow_work_s)) {}

  bool is_ready() const override { return !is_ahead_ || entry_->is_compiled(); }

  Result<std::span<const uint32_t>> allowed() override {
    if (error_) return *error_;
    if (!is_current_) {
      if (Status done = compute(); !done) return fail(std::move(done).error());
      is_current_ = true;
    }
    return std::span<const uint32_t>(words_);
  }

  Status commit(TokenId token) override {
    if (error_) return *error_;
    is_current_ = false;
    noted_.push_back(token);
    if (!constraint_) return Done{};
    if (Status done = take_noted(); !done) return fail(std::move(done).error());
    return Done{};
  }

  bool is_over() const override { return constraint_ && constraint_->is_stopped(); }

 private:
  Status compute() {
    if (!constraint_) TRY(begin());
    const int64_t begin_ns = meters_->clock.now_ns();
    Status done =
        within_budget([this] { return constraint_->mask(words_.data(), words_.size()); }, meters_->mask_failures);
    meters_->mask_seconds.observe(seconds_since(meters_->clock, begin_ns));
    return done;
  }

  // A copy of a large grammar counts as work; tokens that came elsewhere were paid for there.
  Status begin() {
    const int64_t begin_ns = meters_->work_clock.now_ns();
    TRY_ASSIGN(Constraint copy, entry_->copy());
    constraint_.emplace(std::move(copy));
    words_.resize(entry_->num_mask_words());
    TRY(charge(begin_ns));
    Status replayed = noted_.empty() ? Status(Done{}) : constraint_->commit(noted_);
    noted_.clear();
    if (replayed) return Done{};
    meters_->commit_failures.add();
    return std::move(replayed).error().during("the grammar failed in the middle of an answer");
  }

  Status take_noted() {
    Status done = within_budget([this] { return constraint_->commit(noted_); }, meters_->commit_failures);
    noted_.clear();
    return done;
  }

  template <class Work>
  Status within_budget(const Work& work, Counter& failures) {
    const int64_t begin_ns = meters_->work_clock.now_ns();
    Status done = work();
    if (!done) {
      failures.add();
      return std::move(done).error().during("the grammar failed in the middle of an answer");
    }
    return charge(begin_ns);
  }

  Status charge(int64_t begin_ns) {
    const double took_s = seconds_since(meters_->work_clock, begin_ns);
    if (took_s > meters_->slow_s) *slow_work_s_ += took_s;
    if (*slow_work_s_ <= meters_->budget_s) return Done{};
    meters_->budget_failures.add();
    return Error{ErrorCode::kInvalidArgument, "the grammar takes too long: its slow tokens took " +
                                                  std::to_string(meters_->budget_s) + " s of the server's time"};
  }

  Error fail(Error error) {
    constraint_.reset();
    error_ = error;
    return error;
  }

  const std::shared_ptr<Entry> entry_;
  const bool is_ahead_;  // somebody else compiles
  const std::shared_ptr<Meters> meters_;
  const std::shared_ptr<double> slow_work_s_;  // of the request; its choices are on one thread
  std::optional<Constraint> constraint_;
  std::vector<TokenId> noted_;  // not yet in the constraint
  std::vector<uint32_t> words_;
  bool is_current_ = false;  // words_ are those after the newest token
  std::optional<Error> error_;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, GrammarConfig config, MetricRegistry& metrics)
    : config_(std::move(config)),
      meters_(std::make_shared<Meters>(config_, metrics)),
      engine_(std::make_shared<Engine>(tokenizer, config_)),
      wanted_(kMaxWanted) {}

GrammarCompiler::~GrammarCompiler() {
  wanted_.close();
  std::optional<std::thread> thread;
  {
    Lock lock(mutex_);
    is_stopping_ = true;
    thread.swap(thread_);
  }
  if (thread) thread->join();
}

void GrammarCompiler::forget_oldest() {
  const sched::Grammar& grammar = kept_.back()->grammar();
  kept_bytes_ -= grammar.source.size();
  by_key_.erase({grammar.kind, grammar.source});
  kept_.pop_back();
}

std::shared_ptr<GrammarCompiler::Entry> GrammarCompiler::entry_of(const sched::Grammar& grammar) {
  Lock lock(mutex_);
  if (const auto found = by_key_.find({grammar.kind, grammar.source}); found != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return kept_.front();
  }
  auto entry = std::make_shared<Entry>(grammar, engine_, meters_);
  kept_.push_front(entry);
  by_key_.emplace(Key{grammar.kind, grammar.source}, kept_.begin());
  kept_bytes_ += grammar.source.size();
  while (kept_.size() > config_.max_kept || kept_bytes_ > config_.max_kept_bytes) forget_oldest();
  return entry;
}

Status GrammarCompiler::check(const sched::Grammar& grammar) { return entry_of(grammar)->compile(); }

bool GrammarCompiler::is_known(const sched::Grammar& grammar) const {
  Lock lock(mutex_);
  const auto found = by_key_.find({grammar.kind, grammar.source});
  return found != by_key_.end() && (*found->second)->is_compiled();
}

TokenMaskMaker GrammarCompiler::masks_ahead(const sched::Grammar& grammar) {
  std::shared_ptr<Entry> entry = entry_of(grammar);
  if (!entry->is_compiled()) begin();
  const bool is_ahead = entry->is_compiled() || wanted_.try_push(entry);  // too much is wanted: as masks_of()
  return make_masks(std::move(entry), is_ahead, meters_);
}

void GrammarCompiler::begin() {
  Lock lock(mutex_);
  if (!thread_ && !is_stopping_) thread_.emplace([this] { run(); });
}

void GrammarCompiler::run() {
  static_cast<void>(engine_->get());
  for (;;) {
    const auto entries = wanted_.wait_drain(kIdleWait_s);
    for (const std::shared_ptr<Entry>& entry : entries) {
      {
        Lock lock(mutex_);
        if (is_stopping_) return;
      }
      static_cast<void>(entry->compile());  // what is wrong comes as the mask's error
    }
    Lock lock(mutex_);
    if (is_stopping_) return;
  }
}

TokenMaskMaker GrammarCompiler::masks_of(const sched::Grammar& grammar) {
  return make_masks(entry_of(grammar), false, meters_);
}

Result<std::function<TokenMaskMaker()>> GrammarCompiler::compile(const sched::Grammar& grammar) {
  const std::shared_ptr<Entry> entry = entry_of(grammar);
  TRY(entry->compile());
  return std::function<TokenMaskMaker()>([entry, meters = meters_] { return make_masks(entry, false, meters); });
}

TokenMaskMaker GrammarCompiler::make_masks(std::shared_ptr<Entry> entry, bool is_ahead,
                                           std::shared_ptr<Meters> meters) {
  return [entry = std::move(entry), is_ahead, meters = std::move(meters), slow_work_s = std::make_shared<double>(0)] {
    return std::make_unique<Mask>(entry, is_ahead, meters, slow_work_s);
  };
}

}  // namespace tandem::text
