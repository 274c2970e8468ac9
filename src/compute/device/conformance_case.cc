#include "compute/device/conformance_case.h"

#include <string.h>

#include <algorithm>

namespace tandem::device {
namespace {

constexpr uint64_t kUnplaced = ~uint64_t{0};

uint64_t align_up(uint64_t size) { return (size + 63) / 64 * 64; }

Status copy_in(Device& device, Buffer& to, const void* from, uint64_t size_bytes) {
  if (size_bytes == 0) return Done{};
  TRY_ASSIGN(Stream stream, device.create_stream());
  TRY(stream.copy_to_device(to.address(), from, size_bytes));
  return stream.synchronize();
}

}  // namespace

Result<CaseRun> CaseRun::prepare(Device& device, const ConformanceCase& test_case) {
  CaseRun run(device, test_case);
  run.kv_layout_ = test_case.kv;
  if (test_case.num_blocks > 0) TRY(device.fill_kv_layout(run.kv_layout_));
  TRY_ASSIGN(run.kv_, device.alloc(uint64_t{test_case.num_blocks} * run.kv_layout_.block_stride + 64));
  for (uint32_t slot = 0; slot < kNumInputSlots; ++slot) {
    const uint64_t row_bytes = device.row_bytes(TD_F32, test_case.input_columns[slot]);
    TRY_ASSIGN(run.external_[slot], device.alloc(test_case.max_tokens * row_bytes + 64));
  }
  const td_operand& output = test_case.output;
  const uint64_t rows = std::max(test_case.max_tokens, test_case.max_outputs);
  TRY_ASSIGN(run.external_[kOutputSlot],
             device.alloc(rows * device.row_bytes(static_cast<td_format>(output.format), output.columns_total) + 64));
  TRY(run.pack_weights());
  TRY(run.make_plan());
  TRY_ASSIGN(Stream stream, device.create_stream());
  run.stream_.push_back(std::move(stream));
  return run;
}

Status CaseRun::pack_weights() {
  for (const CaseWeight& weight : case_.weights) {
    std::vector<td_weight_part> parts;
    for (const CasePart& part : weight.parts) parts.push_back({part.dtype, part.num_rows, part.bytes.data()});
    parts_.push_back(std::move(parts));
    td_weight packed{};
    packed.desc = weight.desc;
    packed.desc.parts = parts_.back().data();
    TRY_ASSIGN(packed.size_bytes, device_.weight_pack_size(packed.desc));
    std::vector<uint8_t> staged(packed.size_bytes);
    TRY(device_.weight_pack(packed.desc, staged.data()));
    TRY_ASSIGN(Buffer buffer, device_.alloc(packed.size_bytes));
    TRY(copy_in(device_, buffer, staged.data(), staged.size()));
    packed.address = buffer.address();
    buffers_.push_back(std::move(buffer));
    weights_.push_back(packed);
  }
  return Done{};
}

void CaseRun::place(td_operand& operand, std::vector<uint64_t>& offsets, uint64_t& arena_bytes) const {
  if (operand.space == TD_NONE) return;
  operand.row_bytes = device_.row_bytes(static_cast<td_format>(operand.format), operand.columns_total);
  if (operand.space != TD_ARENA) return;
  const uint32_t value = operand.slot;
  if (value >= offsets.size()) offsets.resize(value + 1, kUnplaced);
  if (offsets[value] == kUnplaced) {
    offsets[value] = arena_bytes;
    arena_bytes += align_up(std::max(case_.max_tokens, case_.max_outputs) * operand.row_bytes);
  }
  operand.offset = offsets[value];
  operand.slot = 0;
}

Status CaseRun::make_plan() {
  std::vector<td_op> ops = case_.ops;
  std::vector<uint64_t> offsets;
  uint64_t arena_bytes = 0;
  for (td_op& op : ops) {
    for (td_operand& operand : op.in) place(operand, offsets, arena_bytes);
    place(op.out[0], offsets, arena_bytes);
    TRY(device_.op_supported(op, weights_.data()));
  }
  TRY_ASSIGN(arena_, device_.alloc(arena_bytes + 64));
  td_plan_desc desc{};
  desc.ops = ops.data();
  desc.num_ops = static_cast<uint32_t>(ops.size());
  desc.weights = weights_.data();
  desc.num_weights = static_cast<uint32_t>(weights_.size());
  desc.arena_bytes = arena_bytes;
  desc.max_tokens = case_.max_tokens;
  desc.max_outputs = case_.max_outputs;
  desc.max_sequences = case_.max_sequences;
  desc.max_positions = case_.max_positions;
  desc.kv = kv_layout_;
  TRY_ASSIGN(DevicePlan plan, device_.create_plan(desc));
  plan_.push_back(std::move(plan));
  return Done{};
}

td_bindings CaseRun::bind(const CaseStep& step) {
  sequences_.clear();
  uint32_t row = 0;
  for (const CaseSequence& sequence : step.sequences) {
    sequences_.push_back({row, sequence.num_rows, sequence.position, static_cast<uint32_t>(sequence.blocks.size()),
                          sequence.blocks.data()});
    row += sequence.num_rows;
  }
  td_bindings bindings{};
  bindings.arena = arena_.address();
  bindings.kv = kv_.address();
  for (uint32_t slot = 0; slot <= kNumInputSlots; ++slot) bindings.external[slot] = external_[slot].address();
  bindings.num_tokens = step.num_tokens;
  bindings.num_sequences = static_cast<uint32_t>(sequences_.size());
  bindings.num_outputs = static_cast<uint32_t>(step.output_rows.size());
  bindings.token_ids = step.token_ids.data();
  bindings.sequences = sequences_.data();
  bindings.output_rows = step.output_rows.data();
  return bindings;
}

Result<std::vector<uint32_t>> CaseRun::run(const CaseStep& step) {
  Stream& stream = stream_[0];
  TRY(stream.copy_blocks(kv_.address(), kv_layout_, step.copies));
  for (uint32_t slot = 0; slot < kNumInputSlots; ++slot) {
    const uint32_t columns = case_.input_columns[slot];
    if (columns == 0) continue;
    const uint64_t row_bytes = device_.row_bytes(TD_F32, columns);
    std::vector<uint8_t> rows(step.num_tokens * row_bytes);
    for (uint32_t row = 0; row < step.num_tokens; ++row) {
      const float* from = step.inputs[slot].data() + uint64_t{row} * columns;
      memcpy(rows.data() + row * row_bytes, from, columns * sizeof(float));
    }
    TRY(stream.copy_to_device(external_[slot].address(), rows.data(), rows.size()));
    TRY(stream.synchronize());
  }
  TRY(launch(bind(step)));
  const td_operand& output = case_.output;
  const uint64_t num_rows = output.rows == TD_ROWS_TOKENS ? step.num_tokens : step.output_rows.size();
  const uint64_t row_bytes = device_.row_bytes(static_cast<td_format>(output.format), output.columns_total);
  std::vector<uint8_t> rows(num_rows * row_bytes);
  TRY(stream.copy_to_host(rows.data(), external_[kOutputSlot].address(), rows.size()));
  TRY(stream.synchronize());
  std::vector<uint32_t> values(num_rows * output.columns_total);
  for (uint64_t row = 0; row < num_rows; ++row) {
    memcpy(values.data() + row * output.columns_total, rows.data() + row * row_bytes,
           output.columns_total * sizeof(uint32_t));
  }
  return values;
}

}  // namespace tandem::device
