#include "apps/bench_model.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>

#include "apps/model_source.h"
#include "apps/wiring.h"
#include "lab/bench/random_model.h"

namespace tandem::apps {
namespace {

Status write_bytes(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (out) return Done{};
  return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", path, strerror(errno))};
}

bench::OpCost linear_cost(const graph::Weight& weight, uint64_t packed_bytes, bool is_head) {
  bench::OpCost cost;
  cost.arithmetic = weight.activation == TD_Q8     ? bench::Arithmetic::kInt8
                    : weight.activation == TD_BF16 ? bench::Arithmetic::kBf16
                                                   : bench::Arithmetic::kF32;
  cost.is_head = is_head;
  cost.weight_bytes = static_cast<double>(packed_bytes);
  cost.ops_per_row = 2.0 * weight.n * weight.k;
  return cost;
}

bench::OpCost attention_cost(const graph::OpAttributes& attributes, const td_kv_layout& layout) {
  bench::OpCost cost;
  cost.arithmetic = layout.kind == TD_KV_F32 ? bench::Arithmetic::kF32 : bench::Arithmetic::kBf16;
  cost.kv_bytes_per_key = static_cast<double>(layout.layer_stride) / layout.block_tokens;
  cost.ops_per_key = 4.0 * attributes.num_heads * attributes.head_dim;
  return cost;
}

}  // namespace

Status check_bench_source(const std::vector<std::string>& positionals, const OptionValues& values) {
  const bool is_random = values.has("random");
  if (is_random && !positionals.empty()) return Error{ErrorCode::kInvalidArgument, "give MODEL or --random, not both"};
  if (!is_random && positionals.empty()) {
    return Error{ErrorCode::kInvalidArgument, "bench engine needs MODEL, or --random for one without a file"};
  }
  if (!is_random && values.has("write-gguf")) {
    return Error{ErrorCode::kInvalidArgument, "--write-gguf is for the model of --random"};
  }
  return Done{};
}

Result<BenchModel> open_bench_model(const std::vector<std::string>& positionals, const OptionValues& values,
                                    runner::RunnerOptions& options) {
  const std::string passes = values.text("passes");
  if (!values.has("random")) {
    TRY_ASSIGN(options.model_path, locate_model(positionals[0]));
    TRY_ASSIGN(model::WeightFiles files, model::WeightFiles::open(options.model_path));
    TRY_ASSIGN(ModelView view, view_files(std::move(files), options, passes));
    return BenchModel{positionals[0], options.model_path, {}, std::move(view)};
  }
  const std::string name = fmt::format("random {} {}", values.text("random"), values.text("type"));
  TRY_ASSIGN(std::vector<uint8_t> bytes, bench::random_gguf(values.text("random"), values.text("type")));
  if (values.has("write-gguf")) TRY(write_bytes(values.text("write-gguf"), bytes));
  options.pack_cache_directory.clear();  // it is named after a file's contents
  TRY_ASSIGN(model::WeightFiles files, model::WeightFiles::from_gguf_bytes(bytes, name));
  TRY_ASSIGN(ModelView view, view_files(std::move(files), options, passes));
  return BenchModel{name, {}, std::move(bytes), std::move(view)};
}

std::vector<bench::OpCost> op_costs(const ModelView& view, const td_kv_layout& kv_layout) {
  std::vector<bench::OpCost> costs;
  const auto add_graph = [&](const graph::Graph& graph, const std::vector<uint64_t>& packed_bytes, bool is_head) {
    for (const graph::Node& node : graph.nodes) {
      if (node.op == TD_OP_ATTENTION) costs.push_back(attention_cost(node.attributes, kv_layout));
      if (node.op != TD_OP_LINEAR) continue;
      const graph::WeightId weight = node.weights[0];
      costs.push_back(linear_cost(graph.weights[weight], packed_bytes[weight], is_head));
    }
  };
  add_graph(view.graphs.body, view.body_weight_bytes, false);
  add_graph(view.graphs.head, view.head_weight_bytes, true);
  return costs;
}

}  // namespace tandem::apps
