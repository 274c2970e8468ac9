#include "compute/device/conformance.h"

#include <bit>
#include <cmath>
#include <functional>
#include <utility>

#include "compute/device/conformance_case_maker.h"
#include "compute/device/conformance_cases.h"

namespace tandem::device {
namespace {

using Values = std::vector<uint32_t>;

// The first difference in words; empty when there is none. `tolerance` 0: bit for bit.
std::string difference(const ConformanceCase& test_case, const Values& got, const Values& expected, float tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] == expected[i]) continue;
    const float a = std::bit_cast<float>(got[i]), b = std::bit_cast<float>(expected[i]);
    const bool is_float = test_case.output.format == TD_F32;
    if (is_float && tolerance > 0 && std::abs(a - b) <= tolerance * (1 + std::abs(b))) continue;
    const uint32_t columns = test_case.output.columns_total;
    const auto text = [&](uint32_t bits, float value) {
      return is_float ? std::to_string(value) + " (bits " + std::to_string(bits) + ")" : std::to_string(bits);
    };
    return "row " + std::to_string(i / columns) + " column " + std::to_string(i % columns) + ": " + text(got[i], a) +
           ", expected " + text(expected[i], b);
  }
  return {};
}

// What the device says to a case, against the oracle; empty when it is well.
Result<std::string> compare(Device& device, Device& oracle, const ConformanceCase& test_case, float tolerance) {
  auto oracle_run = CaseRun::prepare(oracle, test_case);
  if (!oracle_run) return std::move(oracle_run).error().during("oracle: " + test_case.name);
  auto run = CaseRun::prepare(device, test_case);
  if (!run) return std::string(run.error().message);
  for (size_t i = 0; i < test_case.steps.size(); ++i) {
    auto expected = oracle_run->run(test_case.steps[i]);
    if (!expected) return std::move(expected).error().during("oracle: " + test_case.name);
    auto got = run->run(test_case.steps[i]);
    if (!got) return std::string(got.error().message);
    const std::string text = difference(test_case, *got, *expected, tolerance);
    if (!text.empty()) return "step " + std::to_string(i) + ": " + text;
  }
  return std::string();
}

// A plan that looks up embeddings, writes KV and gathers rows, so that every binding matters.
ConformanceCase refusal_case() {
  CaseMaker m("bindings out of range", 1);
  ConformanceCase& test_case = m.editable();
  test_case.kv.kind = TD_KV_BF16;
  test_case.kv.block_tokens = 16;
  test_case.kv.num_layers = 1;
  test_case.kv.num_kv_heads = 1;
  test_case.kv.head_dim = 32;
  test_case.num_blocks = 4;
  test_case.max_tokens = 16;
  test_case.max_outputs = 2;
  test_case.max_sequences = 2;
  test_case.max_positions = 40;
  const td_operand x = m.arena(TD_F32, 32);
  m.op(TD_OP_EMBED, {}, x, {m.table({TD_DTYPE_F32, tensor::DType::kF32}, 10, 32)});
  td_op& write = m.op(TD_OP_KV_WRITE, {x, x}, {});
  write.num_kv_heads = 1;
  write.head_dim = 32;
  m.op(TD_OP_GATHER_ROWS, {x}, m.output(32, TD_F32, TD_ROWS_OUTPUTS));
  CaseStep& step = m.step(4);
  step.token_ids = {1, 9, 0, 2};
  step.sequences = {{3, 36, {0, 1, 2}}, {1, 0, {3}}};
  step.output_rows = {3, 0};
  return m.take();
}

struct Spoiled {
  const char* name;
  std::function<void(CaseStep&)> spoil;
};

std::vector<Spoiled> spoiled_steps() {
  return {
      {"a token id above the table", [](CaseStep& step) { step.token_ids[1] = 10; }},
      {"a negative token id", [](CaseStep& step) { step.token_ids[1] = -1; }},
      {"an output row above the tokens", [](CaseStep& step) { step.output_rows[1] = 16; }},
      {"too many outputs", [](CaseStep& step) { step.output_rows = {0, 1, 2}; }},
      {"too many tokens",
       [](CaseStep& step) {
         step.num_tokens = 17;
         step.token_ids.assign(17, 0);
         step.sequences = {{17, 0, {0, 1}}};
       }},
      {"too many sequences", [](CaseStep& step) { step.sequences = {{2, 0, {0}}, {1, 0, {1}}, {1, 0, {2}}}; }},
      {"a position above the plan's", [](CaseStep& step) { step.sequences[0].position = 38; }},
      {"a position that wraps around", [](CaseStep& step) { step.sequences[0].position = 0xfffffffe; }},
      {"a block table too short", [](CaseStep& step) { step.sequences[0].blocks = {0, 1}; }},
      {"fewer rows than tokens", [](CaseStep& step) { step.sequences.pop_back(); }},
      {"more rows than tokens", [](CaseStep& step) { step.sequences[1].num_rows = 2; }},
      {"no sequences", [](CaseStep& step) { step.sequences.clear(); }},
  };
}

void check_refusals(Device& device, ConformanceReport& report) {
  const ConformanceCase test_case = refusal_case();
  auto run = CaseRun::prepare(device, test_case);
  const auto fail = [&](const std::string& name, std::string text) {
    report.failures.push_back({"refusal of " + name, std::move(text)});
  };
  ++report.num_cases;
  if (!run) return fail(test_case.name, run.error().message);
  for (const Spoiled& spoiled : spoiled_steps()) {
    ++report.num_cases;
    CaseStep step = test_case.steps[0];
    spoiled.spoil(step);
    const Status status = run->launch(run->bind(step));
    if (status) fail(spoiled.name, "was accepted");
    else if (status.error().message.empty()) fail(spoiled.name, "came without a reason");
  }
  ++report.num_cases;
  // Rows of the second sequence said to begin elsewhere than where the first ends.
  td_bindings bindings = run->bind(test_case.steps[0]);
  std::vector<td_sequence> sequences(bindings.sequences, bindings.sequences + bindings.num_sequences);
  sequences[1].row_begin = 2;
  bindings.sequences = sequences.data();
  if (run->launch(bindings)) fail("sequences that overlap", "was accepted");
  // And after all that the device still works.
  if (const auto values = run->run(test_case.steps[0]); !values) fail("nothing", values.error().message);
}

}  // namespace

Result<ConformanceReport> check_conformance(Device& device, Device& oracle, float tolerance) {
  const bool is_exact = device.properties().batch_invariant != 0 && oracle.properties().batch_invariant != 0;
  ConformanceReport report;
  for (const ConformanceCase& test_case : conformance_cases()) {
    TRY_ASSIGN(std::string text, compare(device, oracle, test_case, is_exact ? 0.0f : tolerance));
    ++report.num_cases;
    if (!text.empty()) report.failures.push_back({test_case.name, std::move(text)});
  }
  check_refusals(device, report);
  return report;
}

}  // namespace tandem::device
