#include "plugins/cpu/cpu_plan.h"

#include <algorithm>
#include <string>

namespace tandem::cpu {
namespace {

// Contexts that differ by less than this are much the same work.
constexpr uint32_t kSimilarPositions = 256;

Error bad_bindings(const char* what, uint64_t found, uint64_t limit) {
  return Error{ErrorCode::kInvalidArgument, std::string("launch: ") + what + " " + std::to_string(found) +
                                                ", the plan was made for " + std::to_string(limit)};
}

}  // namespace

CpuPlan::CpuPlan(const td_plan_desc& desc, kernels::Isa isa, Team& team)
    : team_(team), shares_{WorkShares(team.num_members()), WorkShares(team.num_members())} {
  context_.linear = &kernels::linear_kernels(isa);
  context_.element = &kernels::element_kernels(isa);
  context_.attention = &kernels::attention_kernels(isa);
  context_.isa = isa;
  context_.num_members = team.num_members();
  context_.weights.assign(desc.weights, desc.weights + desc.num_weights);
  for (td_weight& weight : context_.weights) {
    context_.weight_parts.emplace_back(weight.desc.parts, weight.desc.parts + weight.desc.num_parts);
    weight.desc.parts = context_.weight_parts.back().data();
  }
  context_.desc = desc;
  context_.desc.ops = nullptr;
  context_.desc.weights = context_.weights.data();
  context_.step.sequence_of_row.resize(desc.max_tokens);
  context_.ahead.resize(team.num_members());
}

Result<std::unique_ptr<CpuPlan>> CpuPlan::create(const td_plan_desc& desc, kernels::Isa isa, Team& team) {
  std::unique_ptr<CpuPlan> plan(new CpuPlan(desc, isa, team));
  for (uint32_t i = 0; i < desc.num_ops; ++i) {
    const td_op& op = desc.ops[i];
    if (auto valid = check_op(plan->context_, op); !valid) {
      return std::move(valid).error().during("op " + std::to_string(i));
    }
    plan->has_sequence_ops_ |= op.kind == TD_OP_ROPE || op.kind == TD_OP_KV_WRITE || op.kind == TD_OP_ATTENTION ||
                               op.kind == TD_OP_ROPE_KV_WRITE;
    if (op.kind == TD_OP_EMBED) plan->num_embedding_rows_ = plan->context_.weights[op.weight[0]].desc.n;
    if (auto made = make_ops(plan->context_, desc.ops[i], plan->ops_); !made) {
      return std::move(made).error().during("op " + std::to_string(i));
    }
    plan->op_begins_.push_back(static_cast<uint32_t>(plan->ops_.size()));
  }
  plan->num_items_.resize(plan->ops_.size());
  plan->stages_.reserve(plan->ops_.size());
  return plan;
}

Status CpuPlan::check_bindings(const td_bindings& bindings) const {
  const td_plan_desc& desc = context_.desc;
  if (bindings.num_tokens > desc.max_tokens) return bad_bindings("tokens", bindings.num_tokens, desc.max_tokens);
  if (bindings.num_outputs > desc.max_outputs) return bad_bindings("outputs", bindings.num_outputs, desc.max_outputs);
  if (bindings.num_sequences > desc.max_sequences) {
    return bad_bindings("sequences", bindings.num_sequences, desc.max_sequences);
  }
  for (uint32_t i = 0; num_embedding_rows_ > 0 && i < bindings.num_tokens; ++i) {
    const auto token = static_cast<uint32_t>(bindings.token_ids[i]);
    if (token >= num_embedding_rows_) return bad_bindings("token id", token, num_embedding_rows_);
  }
  for (uint32_t i = 0; i < bindings.num_outputs; ++i) {
    const uint32_t row = bindings.output_rows[i];
    if (row >= desc.max_tokens) return bad_bindings("output row", row, desc.max_tokens);
  }
  return check_sequences(bindings);
}

Status CpuPlan::check_sequences(const td_bindings& bindings) const {
  const td_plan_desc& desc = context_.desc;
  uint32_t row = 0;
  for (uint32_t s = 0; s < bindings.num_sequences; ++s) {
    const td_sequence& sequence = bindings.sequences[s];
    if (sequence.row_begin != row) {
      return Error{ErrorCode::kInvalidArgument, "launch: sequences do not follow each other"};
    }
    row += sequence.num_rows;
    const uint64_t end = uint64_t{sequence.position} + sequence.num_rows;
    if (end > desc.max_positions) return bad_bindings("positions", end, desc.max_positions);
    if (end > uint64_t{sequence.num_blocks} * desc.kv.block_tokens) {
      return Error{ErrorCode::kInvalidArgument, "launch: a block table is too short for its positions"};
    }
  }
  if ((bindings.num_sequences > 0 || has_sequence_ops_) && row != bindings.num_tokens) {
    return Error{ErrorCode::kInvalidArgument, "launch: sequences do not cover the tokens"};
  }
  return Done{};
}

Status CpuPlan::launch_part(uint32_t begin_op, uint32_t end_op, const td_bindings& bindings) {
  if (begin_op > end_op) return bad_bindings("first op", begin_op, end_op);
  if (end_op > num_description_ops()) return bad_bindings("end of ops", end_op, num_description_ops());
  TRY(check_bindings(bindings));
  for (uint32_t s = 0; s < bindings.num_sequences; ++s) {
    const td_sequence& sequence = bindings.sequences[s];
    std::fill_n(context_.step.sequence_of_row.begin() + sequence.row_begin, sequence.num_rows, s);
  }
  ++context_.step.launch;
  bindings_ = &bindings;
  begin_ = op_begins_[begin_op];
  end_ = op_begins_[end_op];
  team_.run(*this);
  return Done{};
}

void CpuPlan::prepare(uint32_t num_active) {
  for (uint32_t op = begin_; op < end_; ++op) num_items_[op] = ops_[op]->begin(*bindings_);
  stages_.clear();
  uint32_t op = begin_;
  while (op < end_ && num_items_[op] <= 1) ++op;
  run_serial(begin_, op, 0);
  while (op < end_) {
    Stage stage{op, num_items_[op], op + 1, 0};
    while (stage.serial_end < end_ && num_items_[stage.serial_end] <= 1) ++stage.serial_end;
    stages_.push_back(stage);
    op = stage.serial_end;
  }
  auto weights = static_cast<uint32_t>(stages_.size());
  for (uint32_t i = weights; i-- > 0;) {
    stages_[i].weights = weights;
    if (ops_[stages_[i].op]->weights_of(0).begin != nullptr) weights = i;
  }
  for (size_t i = 0; i < std::min<size_t>(2, stages_.size()); ++i) {
    for (uint32_t member = 0; member < num_active; ++member) {
      shares_[i].set(member, num_active, stages_[i].num_items);
    }
  }
}

// By the plan, how much of it, its rows, and how much context they look at.
uint64_t CpuPlan::kind() const {
  uint64_t seen_positions = 0;
  for (uint32_t s = 0; s < bindings_->num_sequences; ++s) {
    const td_sequence& sequence = bindings_->sequences[s];
    seen_positions += uint64_t{sequence.position} * sequence.num_rows;
  }
  const uint64_t work = bindings_->num_tokens + bindings_->num_outputs;
  const uint64_t parts[4] = {reinterpret_cast<uintptr_t>(this), end_ - begin_, work,
                             seen_positions / kSimilarPositions / (work + 1)};
  uint64_t kind = 0;
  for (const uint64_t part : parts) kind = (kind ^ part) * 0x9E3779B97F4A7C15;
  return kind;
}

void CpuPlan::run_serial(uint32_t begin, uint32_t end, uint32_t member) {
  for (uint32_t op = begin; op < end; ++op) {
    if (num_items_[op] == 1) ops_[op]->work(0, member);
  }
}

// What `member` reads after an item of `stage`: for its next item, or else for its first one of the next linear.
WeightRange CpuPlan::weights_ahead(const Stage& stage, uint32_t next_item, uint32_t member) const {
  if (next_item != WorkShares::kNone) return ops_[stage.op]->weights_of(next_item);
  if (stage.weights == stages_.size()) return {};
  const Stage& next = stages_[stage.weights];
  return ops_[next.op]->weights_of(WorkShares::first(member, team_.num_active(), next.num_items));
}

void CpuPlan::work(uint32_t member) {
  const uint32_t num_active = team_.num_active();
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    WorkShares& shares = shares_[i % 2];
    CpuOp& op = *ops_[stage.op];
    for (uint32_t item; (item = shares.take(member, num_active)) != WorkShares::kNone;) {
      context_.ahead[member] = weights_ahead(stage, shares.peek(member), member);
      op.work(item, member);
    }
    team_.barrier(member, [&] { run_serial(stage.op + 1, stage.serial_end, member); });
    // All have left this stage's shares, and none comes back before the next barrier.
    if (i + 2 < stages_.size()) shares.set(member, num_active, stages_[i + 2].num_items);
  }
}

}  // namespace tandem::cpu
