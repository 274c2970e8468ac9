#pragma once
// CpuPlan: a plan's ops, run by the team: members take work items, with a barrier between ops. An op of a single item
// needs no team: the last member to arrive at the barrier before it runs it there, so it costs no barrier of its own.

#include <memory>
#include <vector>

#include "base/result.h"
#include "compute/device/device_abi.h"
#include "plugins/cpu/cpu_op.h"
#include "plugins/cpu/team.h"
#include "plugins/cpu/work_shares.h"

namespace tandem::cpu {

class CpuPlan final : public TeamTask {
 public:
  // The team must outlive the plan. Weights' addresses are kept, the rest of the description is copied.
  static Result<std::unique_ptr<CpuPlan>> create(const td_plan_desc& desc, kernels::Isa isa, Team& team);

  // Runs all ops, or those that [begin_op, end_op) of the description became; allocates nothing. kInvalidArgument for
  // bindings outside what the plan was made for.
  Status launch(const td_bindings& bindings) { return launch_part(0, num_description_ops(), bindings); }
  Status launch_part(uint32_t begin_op, uint32_t end_op, const td_bindings& bindings);

  void prepare(uint32_t num_active) override;
  uint64_t kind() const override;
  void work(uint32_t member) override;

 private:
  CpuPlan(const td_plan_desc& desc, kernels::Isa isa, Team& team);
  Status check_bindings(const td_bindings& bindings) const;
  Status check_sequences(const td_bindings& bindings) const;
  uint32_t num_description_ops() const { return static_cast<uint32_t>(op_begins_.size() - 1); }
  void run_serial(uint32_t begin, uint32_t end, uint32_t member);

  // An op that the team shares, and the ops of a single item up to the next such op.
  struct Stage {
    uint32_t op;
    uint32_t num_items;
    uint32_t serial_end;  // serial ops are op + 1 .. serial_end - 1; those without items are skipped
    uint32_t weights;     // the first stage after this one that reads weights, or the number of stages
  };
  WeightRange weights_ahead(const Stage& stage, uint32_t next_item, uint32_t member) const;

  PlanContext context_;
  bool has_sequence_ops_ = false;    // that look up which sequence a row belongs to
  uint32_t num_embedding_rows_ = 0;  // token ids are below this; 0: nothing looks them up
  Team& team_;
  CpuOps ops_;
  std::vector<uint32_t> op_begins_{0};  // by op of the description: its first of ops_; and the end
  // Of the launch under way.
  const td_bindings* bindings_ = nullptr;
  uint32_t begin_ = 0, end_ = 0;     // of ops_
  std::vector<uint32_t> num_items_;  // by op
  std::vector<Stage> stages_;
  WorkShares shares_[2];  // by turns: the next stage's are set while this stage's are in use
};

}  // namespace tandem::cpu
