// The graphs of each architecture as text, before the passes, after each alone and after all, in tests/golden/graph.

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>

#include "compute/graph/check_graph.h"
#include "compute/graph/dump.h"
#include "compute/graph/memory_plan.h"
#include "compute/graph/passes.h"
#include "compute/graph/plan.h"
#include "compute/model/build_graph.h"
#include "testing/golden.h"

namespace tandem::model {
namespace {

using tensor::DType;

// A small model's tensors without bytes: all that a builder looks at.
class TensorSet {
 public:
  struct Types {
    DType bulk = DType::kF32;  // of all matrices but v and down
    DType v = DType::kF32;
    DType down = DType::kF32;
  };

  TensorSet(const ModelConfig& config, Types types) {
    const uint32_t q_rows = config.num_heads * config.head_dim, kv_rows = config.num_kv_heads * config.head_dim;
    tensors_.embedding = add("token_embd", {config.vocab, config.hidden}, types.bulk);
    tensors_.final_norm = add("output_norm", {config.hidden}, DType::kF32);
    if (!config.tied_embeddings) tensors_.lm_head = add("output", {config.vocab, config.hidden}, types.down);
    for (uint32_t i = 0; i < config.num_layers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      LayerTensors& to = tensors_.layers.emplace_back();
      to.attn_norm = add(layer + "attn_norm", {config.hidden}, DType::kF32);
      to.q = add(layer + "q", {q_rows, config.hidden}, types.bulk);
      to.k = add(layer + "k", {kv_rows, config.hidden}, types.bulk);
      to.v = add(layer + "v", {kv_rows, config.hidden}, types.v);
      to.o = add(layer + "o", {config.hidden, q_rows}, types.bulk);
      to.ffn_norm = add(layer + "ffn_norm", {config.hidden}, DType::kF32);
      to.gate = add(layer + "gate", {config.ffn, config.hidden}, types.bulk);
      to.up = add(layer + "up", {config.ffn, config.hidden}, types.bulk);
      to.down = add(layer + "down", {config.hidden, config.ffn}, types.down);
      if (config.qkv_bias) {
        to.q_bias = add(layer + "q_bias", {q_rows}, DType::kF32);
        to.k_bias = add(layer + "k_bias", {kv_rows}, DType::kF32);
        to.v_bias = add(layer + "v_bias", {kv_rows}, DType::kF32);
      }
      if (config.qk_norm) {
        to.q_norm = add(layer + "q_norm", {config.head_dim}, DType::kF32);
        to.k_norm = add(layer + "k_norm", {config.head_dim}, DType::kF32);
      }
    }
  }

  const ModelTensors& tensors() const { return tensors_; }

 private:
  const TensorEntry* add(std::string name, std::vector<uint64_t> shape, DType dtype) {
    entries_.push_back({std::move(name), dtype, std::move(shape), {}, {}});
    return &entries_.back();
  }

  std::deque<TensorEntry> entries_;  // keeps addresses
  ModelTensors tensors_;
};

ModelConfig small_config(const std::string& architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.num_layers = 1;
  config.hidden = 256;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  config.ffn = 512;
  config.vocab = 320;
  config.norm_eps = 1e-5f;
  config.rope.is_interleaved = architecture == "llama";
  config.tied_embeddings = true;
  return config;
}

struct Case {
  std::string name;
  ModelConfig config;
  TensorSet::Types types;
  Activations activations;
};

std::vector<Case> cases() {
  constexpr TensorSet::Types kQuantised = {DType::kQ4_0, DType::kQ4_0, DType::kQ4_0};
  std::vector<Case> all;
  all.push_back({"llama_q4_0_int8", small_config("llama"), kQuantised, Activations::kInt8});
  all.back().config.num_layers = 2;
  all.push_back({"llama_f32", small_config("llama"), {}, Activations::kF32});
  all.back().config.tied_embeddings = false;
  all.push_back({"llama_q4_0_bf16", small_config("llama"), kQuantised, Activations::kBF16});
  // As Q4_K_M has it: v and down keep more bits.
  constexpr TensorSet::Types kMixed = {DType::kQ4_K, DType::kQ6_K, DType::kQ6_K};
  all.push_back({"llama_q4_k_m_int8", small_config("llama"), kMixed, Activations::kInt8});
  // v takes an input of another format, so that the three linears do not read one value.
  constexpr TensorSet::Types kPlainV = {DType::kQ8_0, DType::kF16, DType::kQ8_0};
  all.push_back({"llama_f16_v_int8", small_config("llama"), kPlainV, Activations::kInt8});
  all.push_back({"mistral_window_int8", small_config("mistral"), kQuantised, Activations::kInt8});
  all.back().config.sliding_window = 64;
  all.push_back({"qwen2_int8", small_config("qwen2"), kQuantised, Activations::kInt8});
  all.back().config.qkv_bias = true;
  all.push_back({"qwen3_int8", small_config("qwen3"), kQuantised, Activations::kInt8});
  all.back().config.qk_norm = true;
  // Heads of 16 columns: attention cannot quantise its output by itself, since a block has 32.
  all.push_back({"llama_head16_int8", small_config("llama"), kQuantised, Activations::kInt8});
  all.back().config.head_dim = 16;
  all.back().config.num_heads = 16;
  return all;
}

ModelGraphs build(const Case& test_case) {
  const TensorSet set(test_case.config, test_case.types);
  const std::vector<float> rope(size_t{16} * test_case.config.head_dim);
  auto graphs = build_graphs(test_case.config, set.tensors(), {test_case.activations, TD_QUANTIZE_NONE, rope, 16});
  REQUIRE(static_cast<bool>(graphs));
  return std::move(graphs).value();
}

void check_valid(const graph::Graph& graph) {
  const Status valid = graph::check_graph(graph);
  CHECK_MESSAGE(static_cast<bool>(valid), (valid ? "" : valid.error().message) << "\n" << graph::dump_text(graph));
}

uint64_t bytes_of_row(td_format format, uint32_t columns) {
  return format == TD_Q8 ? columns + columns / 4 : uint64_t{columns} * (format == TD_BF16 ? 2 : 4);
}

std::string section(const std::string& title, const graph::Graph& graph) {
  const auto memory = graph::plan_memory(graph, {64, 8}, bytes_of_row, true);
  return "== " + title + ": " + std::to_string(graph.nodes.size()) + " ops, arena " +
         std::to_string(memory.arena_bytes) + "\n" + graph::dump_text(graph) + "\n";
}

TEST_CASE("the graphs of each architecture and what each pass makes of them are as agreed") {
  for (const Case& test_case : cases()) {
    const ModelGraphs graphs = build(test_case);
    std::string text = section("body", graphs.body) + section("head", graphs.head);
    for (const graph::Pass& pass : graph::all_passes()) {
      ModelGraphs changed = graphs;
      pass.run(changed.body);
      pass.run(changed.head);
      const bool is_same = graph::dump_text(changed.body) == graph::dump_text(graphs.body);
      text += is_same ? "== body, " + std::string(pass.name) + ": no change\n\n"
                      : section("body, " + std::string(pass.name), changed.body);
    }
    ModelGraphs fused = graphs;
    graph::run_passes(fused.body, *graph::parse_passes("all"));
    graph::run_passes(fused.head, *graph::parse_passes("all"));
    text += section("body, all passes", fused.body) + section("head, all passes", fused.head);
    const std::string path = TANDEM_SOURCE_DIR "/tests/golden/graph/" + test_case.name + ".txt";
    const std::string difference = testing::golden_difference(path, text);
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

TEST_CASE("every subset of the passes leaves valid graphs that read and write what is outside") {
  for (const Case& test_case : cases()) {
    CAPTURE(test_case.name);
    const ModelGraphs graphs = build(test_case);
    check_valid(graphs.body);
    check_valid(graphs.head);
    check_valid(graphs.pool);
    CHECK(graphs.pool.values[graphs.pool.nodes.back().out].external_slot == kNormedSlot);
    REQUIRE(graphs.pool.weights.size() == 1);
    CHECK(std::ranges::count(graphs.head.weights, graphs.pool.weights[0].name, &graph::Weight::name) == 1);
    for (uint32_t subset = 0; subset < 32; ++subset) {
      CAPTURE(subset);
      ModelGraphs changed = graphs;
      for (size_t i = 0; i < graph::all_passes().size(); ++i) {
        if ((subset >> i & 1) == 0) continue;
        graph::all_passes()[i].run(changed.body);
        graph::all_passes()[i].run(changed.head);
        check_valid(changed.body);
        check_valid(changed.head);
      }
      const auto slot_of_last = [](const graph::Graph& graph) {
        return graph.values[graph.base_of(graph.nodes.back().out)].external_slot;
      };
      CHECK(slot_of_last(changed.body) == kHiddenSlot);
      CHECK(slot_of_last(changed.head) == kLogitsSlot);
      // Nothing in the lowered ops lies outside the arena.
      const auto memory = graph::plan_memory(changed.body, {64, 8}, bytes_of_row, (subset & 1) != 0);
      for (const td_op& op : graph::lower(changed.body, memory, bytes_of_row).ops) {
        for (const td_operand& operand : op.in) {
          if (operand.space == TD_ARENA) CHECK(operand.offset + 64 * operand.row_bytes <= memory.arena_bytes);
        }
      }
    }
  }
}

TEST_CASE("an architecture without a builder is refused by name") {
  const ModelConfig config = small_config("mamba");
  const TensorSet set(config, {});
  const auto graphs = build_graphs(config, set.tensors(), {});
  REQUIRE(!graphs);
  CHECK(graphs.error().message.find("'mamba'; there are llama, mistral, qwen2, qwen3") != std::string::npos);
}

TEST_CASE("the k sum is cut into as many segments as blocks and heads allow") {
  CHECK(num_segments(2048, 32) == 16);  // Llama 1B: o
  CHECK(num_segments(8192, 0) == 16);   // and down
  CHECK(num_segments(576, 9) == 1);     // SmolLM2: 18 blocks, 9 heads
  CHECK(num_segments(1536, 0) == 16);
  CHECK(num_segments(896, 14) == 2);    // Qwen2 0.5B: 28 blocks, 14 heads
  CHECK(num_segments(4864, 0) == 8);    // 152 blocks
  CHECK(num_segments(100, 4) == 1);     // no whole blocks
}

}  // namespace
}  // namespace tandem::model
