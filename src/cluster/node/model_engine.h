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
  std::vector<TokenId> eos_ids;
};

// The rule for the stop strings of a request's choice; null: it has none.
using StopRuleMaker = std::function<std::unique_ptr<sched::StopRule>(const handoff::RequestState& state)>;

// Takes news in the middle of a step. Engine thread; must be quick.
using NewsSink = std::function<void(std::vector<role::EngineNews>)>;

class ModelEngine final : private sched::StepObserver {
 public:
  // Executor and clock outlive it.
  ModelEngine(ModelEngineConfig config, sched::StepExecutor& executor, const Clock& clock,
              StopRuleMaker make_stop_rule);

  // A job that is started again replaces the one before.
  void start_prefill(role::StartPrefill start);
  void stop_prefill(const handoff::RequestId& request) { prefills_.erase(request); }
  void start_decode(role::StartDecode start);
  void extend(const role::ExtendTable& extension);
  void stop_decode(const handoff::RequestId& request) { decodes_.erase(request); }

  bool has_work() const { return !prefills_.empty() || !decodes_.empty(); }
  // Runs one step and tells what came of it. Empty when there was nothing to run. A step that fails is run again, then
  // item by item; only requests whose item fails alone end. Parts that are done before the step goes to `tell`, if any.
  std::vector<role::EngineNews> run_step(const NewsSink& tell = {});

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

  PrefillRank rank_of(const role::StartPrefill& start);
  void plan_decodes();
  void plan_prefills();
  uint32_t plan_choice(const Id& id, PrefillJob& job, uint32_t choice);
  void add_item(const Id& id, EngineChoice& choice, uint32_t index, bool is_decode, uint32_t count);
  sched::StepOutcome execute();
  void apply(const Planned& planned, const sched::BatchItem& item, sched::ItemOutcome& outcome);
  void fail(const Id& id, Error error);
  void report_prefills(std::vector<role::EngineNews>& news);
  void on_layers_written(uint32_t num_layers) override;
  handoff::TokenEntry entry_of(const Id& id, uint32_t choice, const EngineChoice& state,
                               sched::ItemOutcome& outcome) const;
  std::vector<role::PartsComputed> parts_of_step() const;

  const ModelEngineConfig config_;
  sched::StepExecutor& executor_;
  const Clock& clock_;
  const StopRuleMaker make_stop_rule_;
  cost::StepCost cost_;

  std::map<Id, PrefillJob> prefills_;
  std::map<Id, DecodeJob> decodes_;
  uint64_t next_arrival_ = 1;
  Id last_decode_;                     // where the next step's turn begins

  // Of the step under way
  sched::Batch batch_;
  std::vector<Planned> planned_;
  cost::StepShape shape_;
  int64_t step_at_ns_ = 0;  // when it began
  std::map<Id, role::StepTokens> tokens_;
  std::vector<role::JobFailed> failures_;
  std::vector<role::PartsComputed> coming_;  // by prefill, as of its end; of the group to be told of next
  const NewsSink* tell_ = nullptr;           // null: at the step's end
  uint32_t num_groups_told_ = 0;
  Mutex rewrite_mutex_;

  std::atomic<uint64_t> num_steps_{0};
  static constexpr int64_t kNoStep = INT64_MIN;
  std::atomic<int64_t> step_began_ns_{kNoStep};
  std::atomic<uint32_t> step_predicted_ms_{0};
};

}  // namespace tandem::node
