#pragma once
// ModelEngine: the engine of a cluster node. Runs the prefills and decodes that role::Node starts, over KV tables that
// the node owns, with a StepExecutor: decode rows first, then chunks of prompts under a token budget.
//
// One thread (the engine's), but for progress(). Knows no clients, no sockets and no pool: blocks come with the jobs.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/thread_safety.h"
#include "cluster/node/engine_job.h"
#include "cluster/role/node_actions.h"
#include "serve/cost/step_cost.h"
#include "serve/sched/batch.h"
#include "serve/sched/line_key.h"
#include "serve/sched/token_budget.h"

namespace tandem::node {

struct ModelEngineConfig {
  uint32_t block_size = 16;
  uint32_t num_layer_groups = 1;
  uint32_t layers_per_group = 0;     // a group's parts are told of once its layers are written; 0: when the step ends
  uint32_t max_sequences = 64;       // items of a step; more decodes than that take turns
  sched::TokenBudget budget{512, 0.2, 16};
  sched::LinePenalty line;
  uint32_t nested_tokens = 64;       // a prompt of which so much is left is not kept waiting by a step; 0: all wait
  std::vector<TokenId> eos_ids;
  MaskMaker make_masks;  // empty: requests with a grammar fail here
};

// The rule for the stop strings of a request's choice; null: it has none.
using StopRuleMaker = std::function<std::unique_ptr<sched::StopRule>(const handoff::RequestState& state)>;

// Who is asked and told in the middle of a step. Engine thread; must be quick.
class StepHost {
 public:
  virtual void on_early_news(std::vector<role::EngineNews> news) = 0;
  // Between two layers: jobs may be started, extended and stopped now, but none of whose request is_in_step().
  virtual void at_boundary() = 0;

 protected:
  ~StepHost() = default;
};

class ModelEngine final : private sched::StepObserver {
 public:
  // Executor and clock outlive it.
  ModelEngine(ModelEngineConfig config, sched::StepExecutor& executor, const Clock& clock,
              StopRuleMaker make_stop_rule);

  // A job that is started again replaces the one before.
  void start_prefill(role::StartPrefill start);
  void stop_prefill(const handoff::RequestId& request) {
    prefills_.erase(request);
    if (!has_work()) waits_since_ns_.store(kNoStep, std::memory_order_release);
  }
  void start_decode(role::StartDecode start);
  void extend(const role::ExtendTable& extension);
  void stop_decode(const handoff::RequestId& request) {
    decodes_.erase(request);
    if (!has_work()) waits_since_ns_.store(kNoStep, std::memory_order_release);
  }

  // The last step left out choices whose grammar is still being compiled: a step a little later may find them ready.
  bool waits_for_masks() const { return waits_for_masks_ && has_work(); }
  bool has_work() const { return !prefills_.empty() || !decodes_.empty(); }
  // Runs one step and tells what came of it. Empty when there was nothing to run. A step that fails is run again, then
  // item by item; only requests whose item fails alone end.
  //
  // With a host, parts are told of as soon as they are done, and a step with prompts does not keep others waiting: work
  // that comes meanwhile and is short (decodes, and prompts of which little is left, as after a failover) runs in a
  // step of its own between two layers, once when it comes and then as often as the budget's target says.
  std::vector<role::EngineNews> run_step(StepHost* host = nullptr);
  bool is_in_step(const handoff::RequestId& request) const { return step_.requests.contains(request); }

  // Any thread: `read` of parts that were told of. A step that is run again writes parts that it told of again (the
  // same values, for equal work gives equal bits), but not beside `read`.
  template <class Read>
  void with_parts(const Read& read) {
    Lock lock(rewrite_mutex_);
    read();
  }

  role::EngineProgress progress() const;  // any thread

 private:
  using Id = handoff::RequestId;
  struct Planned {  // an item of the step, as in batch_
    Id request;
    uint32_t choice = 0;
    bool is_decode = false;
  };

  std::vector<EngineChoice> make_choices(const handoff::RequestState& state, const role::KvTables& tables,
                                         const sched::EndRule& end) const;
  PrefillRank rank_of(const role::StartPrefill& start);
  struct Step {
    sched::Batch batch;
    std::vector<Planned> planned;
    std::set<Id> requests;  // that it touches
    cost::StepShape shape;
    int64_t began_ns = 0;
    std::map<Id, role::StepTokens> tokens;
    std::vector<role::JobFailed> failures;
    std::vector<role::PartsComputed> coming;  // by prefill, as of its end; of the group to be told of next
    uint32_t num_groups_told = 0;
  };

  void plan_decodes(Step& step);
  void plan_prefills(Step& step);
  uint32_t plan_choice(Step& step, const Id& id, PrefillJob& job, uint32_t choice);
  void add_item(Step& step, const Id& id, EngineChoice& choice, uint32_t index, bool is_decode, uint32_t count);
  sched::StepOutcome execute(const sched::Batch& batch, bool is_observed);
  void apply(Step& step, const Planned& planned, const sched::BatchItem& item, sched::ItemOutcome& outcome);
  static void fail(Step& step, const Id& id, Error error);
  std::vector<role::EngineNews> finish(Step& step, sched::StepOutcome& outcome);
  void report_prefills(Step& step, std::vector<role::EngineNews>& news);
  void on_layers_written(uint32_t num_layers) override;
  bool may_nest(const Id& id, const PrefillJob& job) const;
  bool is_nested_due() const;
  void run_nested();
  handoff::TokenEntry entry_of(const Id& id, uint32_t choice, const EngineChoice& state,
                               sched::ItemOutcome& outcome) const;
  std::vector<role::PartsComputed> parts_of(const Step& step) const;

  const ModelEngineConfig config_;
  sched::StepExecutor& executor_;
  const Clock& clock_;
  const StopRuleMaker make_stop_rule_;
  cost::StepCost cost_;

  std::map<Id, PrefillJob> prefills_;
  std::map<Id, DecodeJob> decodes_;
  uint64_t next_arrival_ = 1;
  Id last_decode_;                     // where the next step's turn begins

  bool waits_for_masks_ = false;

  Step step_;                        // under way
  StepHost* host_ = nullptr;         // of an observed step
  uint64_t num_started_ = 0;         // jobs, ever
  uint64_t num_started_nested_ = 0;  // of them, those that the last step knew, nested ones too
  int64_t nested_began_ns_ = 0;      // the last one, or the step that holds it
  int64_t nested_ns_ = 0;            // how long all of this step took
  Mutex rewrite_mutex_;

  std::atomic<uint64_t> num_steps_{0};
  static constexpr int64_t kNoStep = INT64_MIN;
  std::atomic<int64_t> step_began_ns_{kNoStep};
  std::atomic<int64_t> waits_since_ns_{kNoStep};  // for masks, with nothing else to do
  std::atomic<uint32_t> step_predicted_ms_{0};
};

}  // namespace tandem::node
