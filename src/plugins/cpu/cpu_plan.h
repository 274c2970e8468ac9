#pragma once
// CpuPlan: a plan's ops, run by the team: members take work items from a counter, with a barrier between ops.

#include <atomic>
#include <memory>
#include <vector>

#include "base/result.h"
#include "compute/device/device_abi.h"
#include "plugins/cpu/cpu_op.h"
#include "plugins/cpu/team.h"

namespace tandem::cpu {

class CpuPlan final : public TeamTask {
 public:
  // The team must outlive the plan. Weights' addresses are kept, the rest of the description is copied.
  static Result<std::unique_ptr<CpuPlan>> create(const td_plan_desc& desc, kernels::Isa isa, Team& team);

  // Runs all ops; allocates nothing. kInvalidArgument for bindings outside what the plan was made for.
  Status launch(const td_bindings& bindings);

  void work(uint32_t member) override;

 private:
  CpuPlan(const td_plan_desc& desc, kernels::Isa isa, Team& team);
  Status check_bindings(const td_bindings& bindings) const;
  Status check_sequences(const td_bindings& bindings) const;

  struct alignas(64) OpState {
    std::atomic<uint32_t> next_item{0};
    uint32_t num_items = 0;
    uint32_t grab = 1;  // items taken at once
  };

  PlanContext context_;
  bool has_sequence_ops_ = false;     // that look up which sequence a row belongs to
  uint32_t num_embedding_rows_ = 0;   // token ids are below this; 0: nothing looks them up
  Team& team_;
  CpuOps ops_;
  std::unique_ptr<OpState[]> states_;
};

}  // namespace tandem::cpu
