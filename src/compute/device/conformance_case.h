#pragma once
// One case of the conformance list: ops, weights and a few launches, described so that any device can run it. Private
// to conformance*.cc.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/device/device.h"

namespace tandem::device {

inline constexpr uint32_t kNumInputSlots = 3;  // external 0 to 2: f32 inputs, a row per token
inline constexpr uint32_t kOutputSlot = 3;     // external: what is compared

struct CasePart {
  td_dtype dtype;
  uint32_t num_rows;
  std::vector<uint8_t> bytes;
};

struct CaseWeight {
  td_weight_desc desc{};  // parts are set when it is packed
  std::vector<CasePart> parts;
};

struct CaseSequence {
  uint32_t num_rows;
  uint32_t position;
  std::vector<uint32_t> blocks;
};

// One launch. Rows of sequences follow each other.
struct CaseStep {
  std::vector<td_block_copy> copies;  // before the launch
  uint32_t num_tokens = 0;
  std::vector<CaseSequence> sequences;
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> output_rows;
  std::array<std::vector<float>, kNumInputSlots> inputs;  // [num_tokens][input_columns]
};

struct ConformanceCase {
  std::string name;
  // Offsets and row sizes depend on the device and are filled in when it runs. Until then the slot of an operand in the
  // arena is the number of its value.
  std::vector<td_op> ops;
  std::vector<CaseWeight> weights;
  std::array<uint32_t, kNumInputSlots> input_columns{};
  td_operand output{};
  td_kv_layout kv{};  // strides are filled in when it runs
  uint32_t num_blocks = 0;
  uint32_t max_tokens = 0, max_outputs = 8, max_sequences = 4, max_positions = 640;
  std::vector<CaseStep> steps;
};

// A case made ready on one device.
class CaseRun {
 public:
  static Result<CaseRun> prepare(Device& device, const ConformanceCase& test_case);

  // The output's rows after the step: columns of four bytes.
  Result<std::vector<uint32_t>> run(const CaseStep& step);
  // Bindings for a step, to be spoiled by the caller; valid until the next call.
  td_bindings bind(const CaseStep& step);
  Status launch(const td_bindings& bindings) { return plan_[0].launch(stream_[0], bindings); }

 private:
  CaseRun(Device& device, const ConformanceCase& test_case) : device_(device), case_(test_case) {}
  Status pack_weights();
  Status make_plan();
  void place(td_operand& operand, std::vector<uint64_t>& offsets, uint64_t& arena_bytes) const;

  Device& device_;
  const ConformanceCase& case_;
  td_kv_layout kv_layout_{};
  std::vector<Buffer> buffers_;  // weights
  std::vector<td_weight> weights_;
  std::vector<std::vector<td_weight_part>> parts_;
  std::array<Buffer, kNumInputSlots + 1> external_;
  Buffer arena_, kv_;
  std::vector<Stream> stream_;  // one; movable-only types have no empty state
  std::vector<DevicePlan> plan_;
  std::vector<td_sequence> sequences_;
};

}  // namespace tandem::device
