// Which key/value head a query head reads, against attention written down plainly in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "compute/device/conformance_case_maker.h"
#include "plugins/cpu/cpu_plugin.h"

namespace tandem::cpu {
namespace {

constexpr uint32_t kHeadDim = 32;
constexpr float kScale = 0.2f;

struct Heads {
  uint32_t num_query = 0;
  uint32_t num_kv = 0;
};

// Rows of heads, as the inputs of a step have them.
using Rows = std::vector<float>;

device::ConformanceCase attention_case(const Heads& heads) {
  device::CaseMaker m("heads", 7);
  device::ConformanceCase& made = m.editable();
  made.kv.kind = TD_KV_F32;
  made.kv.block_tokens = 16;
  made.kv.num_layers = 1;
  made.kv.num_kv_heads = heads.num_kv;
  made.kv.head_dim = kHeadDim;
  made.num_blocks = 8;
  made.max_positions = 64;
  const uint32_t q_columns = heads.num_query * kHeadDim, kv_columns = heads.num_kv * kHeadDim;
  const td_operand q = m.input(0, q_columns), k = m.input(1, kv_columns), v = m.input(2, kv_columns);
  const auto set_heads = [&heads](td_op& op) {
    op.num_heads = heads.num_query;
    op.num_kv_heads = heads.num_kv;
    op.head_dim = op.rotary_dim = kHeadDim;
    op.scale = kScale;
  };
  set_heads(m.op(TD_OP_KV_WRITE, {k, v}, {}));
  set_heads(m.op(TD_OP_ATTENTION, {q}, m.output(q_columns)));
  m.step(20).sequences = {{20, 0, {5, 2}}};
  m.step(1).sequences = {{1, 20, {5, 2}}};  // decodes
  return m.take();
}

// Row `position` of query head `head` over keys and values of all rows up to it.
std::vector<double> plain_attention(const Heads& heads, const Rows& queries, const Rows& keys, const Rows& values,
                                    uint32_t position, uint32_t head) {
  const uint32_t kv_head = head / (heads.num_query / heads.num_kv);
  const auto of = [](const Rows& rows, uint32_t row, uint32_t num_heads, uint32_t h) {
    return rows.data() + (size_t{row} * num_heads + h) * kHeadDim;
  };
  const float* query = of(queries, position, heads.num_query, head);
  std::vector<double> weights;
  for (uint32_t row = 0; row <= position; ++row) {
    const float* key = of(keys, row, heads.num_kv, kv_head);
    double score = 0;
    for (uint32_t d = 0; d < kHeadDim; ++d) score += double{query[d]} * key[d];
    weights.push_back(score * kScale);
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  std::vector<double> out(kHeadDim, 0.0);
  for (uint32_t row = 0; row <= position; ++row) {
    const float* value = of(values, row, heads.num_kv, kv_head);
    for (uint32_t d = 0; d < kHeadDim; ++d) out[d] += weights[row] / sum * value[d];
  }
  return out;
}

// Fails when query heads are dealt out in turn (head % num_kv) instead of in groups of neighbours.
TEST_CASE("PAR-05: each query head reads its group's key/value head, at every ratio") {
  auto plugin = device::Plugin::from_entry(tandem_plugin_cpu);
  REQUIRE(static_cast<bool>(plugin));
  for (const Heads heads : {Heads{12, 12}, Heads{32, 8}, Heads{28, 4}, Heads{8, 1}}) {
    const device::ConformanceCase made = attention_case(heads);
    for (const auto& [isa, num_threads] : {std::pair{"scalar", 1u}, std::pair{"", 1u}, std::pair{"", 3u}}) {
      CAPTURE(heads.num_query);
      CAPTURE(heads.num_kv);
      CAPTURE(num_threads);
      auto device = device::Device::open(*plugin, 0, {num_threads, 0, isa});
      REQUIRE(static_cast<bool>(device));
      auto run = device::CaseRun::prepare(*device, made);
      REQUIRE_MESSAGE(static_cast<bool>(run), (run ? "" : run.error().message));
      Rows queries, keys, values;
      double worst = 0;
      for (const device::CaseStep& step : made.steps) {
        const auto rows = run->run(step);
        REQUIRE(static_cast<bool>(rows));
        const uint32_t first = step.sequences[0].position;
        for (const auto& [all, slot] : {std::pair{&queries, 0}, std::pair{&keys, 1}, std::pair{&values, 2}}) {
          all->insert(all->end(), step.inputs[slot].begin(), step.inputs[slot].end());
        }
        for (uint32_t row = 0; row < step.num_tokens; ++row) {
          for (uint32_t head = 0; head < heads.num_query; ++head) {
            const auto expected = plain_attention(heads, queries, keys, values, first + row, head);
            for (uint32_t d = 0; d < kHeadDim; ++d) {
              float got = 0;
              memcpy(&got, &(*rows)[(size_t{row} * heads.num_query + head) * kHeadDim + d], 4);
              worst = std::max(worst, std::abs(got - expected[d]));
            }
          }
        }
      }
      CHECK(worst < 1e-4);
      CHECK(worst > 0);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
