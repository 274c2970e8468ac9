#pragma once
// CpuOp: one op of a plan, cut into work items that members of the team take in any order. An item's result never
// depends on which member ran it or on how many items there are.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/device/device_abi.h"
#include "compute/kernels/attention.h"
#include "compute/kernels/element_kernels.h"
#include "compute/kernels/isa.h"
#include "compute/kernels/linear.h"

namespace tandem::cpu {

// Weights that a work item reads first, one byte behind the other. On a cache line of its own: members write theirs.
struct alignas(64) WeightRange {
  const uint8_t* begin = nullptr;  // null: none
  uint32_t size_bytes = 0;
};

class CpuOp {
 public:
  virtual ~CpuOp() = default;
  // Once per launch, by one thread, before any work: remembers the bindings, which stay until the launch ends, and
  // returns the number of work items.
  virtual uint32_t begin(const td_bindings& bindings) = 0;
  virtual void work(uint32_t item, uint32_t member) = 0;
  // After begin(). Only so that they can be fetched ahead.
  virtual WeightRange weights_of(uint32_t /*item*/) const { return {}; }
};

// Which sequence each row of the step belongs to, filled once per launch before the ops begin.
struct StepRows {
  std::vector<uint32_t> sequence_of_row;  // [max_tokens]
  uint64_t launch = 0;                    // a new number each launch
};

struct AttentionScratch;  // attention_op.cc

// What ops are made with; lives as long as the plan.
struct PlanContext {
  const kernels::LinearKernels* linear = nullptr;
  const kernels::ElementKernels* element = nullptr;
  const kernels::AttentionKernels* attention = nullptr;
  kernels::Isa isa = kernels::Isa::kScalar;
  uint32_t num_members = 1;
  td_plan_desc desc{};  // ops are null; weights point to `weights`
  std::vector<td_weight> weights;
  std::vector<std::vector<td_weight_part>> weight_parts;
  StepRows step;
  std::vector<WeightRange> ahead;  // by member: what it reads once it is done with the item in hand
  std::shared_ptr<AttentionScratch> attention_scratch;  // made by the first attention op
};

// Address of row 0 of an operand in this launch, and its rows' number.
uint8_t* operand_base(const td_operand& operand, const td_bindings& bindings);
uint32_t num_rows(uint32_t rows, const td_bindings& bindings);
uint8_t rows_kind(uint32_t format);  // td_format to TK_ROWS_*

// Whether an op has the operands and weights that its kind needs, inside the arena and the plan's weights. What only
// one kind asks for its make function checks.
Status check_op(const PlanContext& context, const td_op& op);

// An op can become several (attention: partial results, then the merge). Errors name what is not supported.
using CpuOps = std::vector<std::unique_ptr<CpuOp>>;
Status make_ops(PlanContext& context, const td_op& op, CpuOps& ops);

// Where the KV of (layer, kv head) begins in block 0.
inline uint8_t* kv_base(const td_kv_layout& layout, void* kv, uint32_t layer, uint32_t head) {
  return static_cast<uint8_t*>(kv) + layer * layout.layer_stride + head * layout.head_stride;
}

// By file.
Status make_linear(PlanContext& context, const td_op& op, CpuOps& ops);
Status make_attention(PlanContext& context, const td_op& op, CpuOps& ops);
Status make_rope_kv(PlanContext& context, const td_op& op, CpuOps& ops);
Status make_row_op(PlanContext& context, const td_op& op, CpuOps& ops);

}  // namespace tandem::cpu
