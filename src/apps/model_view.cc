#include "apps/model_view.h"

#include <algorithm>

#include "apps/model_source.h"
#include "apps/wiring.h"
#include "compute/graph/memory_plan.h"
#include "compute/model/rope_table.h"
#include "compute/model/weight_names.h"
#include "plugins/cpu/cpu_plugin.h"

namespace tandem::apps {

Result<ModelView> view_model(const std::string& model, const OptionValues& values, const std::string& passes) {
  TRY_ASSIGN(const std::string path, locate_model(model));
  TRY_ASSIGN(const runner::RunnerOptions options, runner_options(values, path));
  TRY_ASSIGN(model::WeightFiles files, model::WeightFiles::open(path));
  return view_files(std::move(files), options, passes);
}

Result<ModelView> view_files(model::WeightFiles files, const runner::RunnerOptions& options,
                             const std::string& passes) {
  TRY_ASSIGN(model::ModelConfig config, model::read_config(files));
  TRY_ASSIGN(const model::ModelTensors tensors, model::collect(files, config));
  const model::Activations activations =
      options.activations.value_or(model::default_activations(tensors, options.quantization));
  // Only the shape of the graph is looked at: a table for one position will do.
  const std::vector<float> rope_table = model::rope_cos_sin(config.rope, config.head_dim, 1);
  const model::BuildOptions build{activations, options.quantization, rope_table, 1};
  TRY_ASSIGN(model::ModelGraphs graphs, model::build_graphs(config, tensors, build));
  TRY_ASSIGN(graph::PassChoice choice, graph::parse_passes(passes));
  graph::run_passes(graphs.body, choice);
  graph::run_passes(graphs.head, choice);

  TRY_ASSIGN(const device::Plugin plugin, device::Plugin::from_entry(options.plugin));
  TRY_ASSIGN(device::Device device, device::Device::open(plugin, 0, td_device_options{1, 0, ""}));
  const graph::RowBytes row_bytes = [&](td_format format, uint32_t columns) {
    return device.row_bytes(format, columns);
  };
  ModelView view{std::move(files), std::move(config), activations, std::move(graphs), std::move(choice),
                 {}, {}, {}, {}};
  const graph::WeightBytes weight_bytes = [&](const graph::Weight& weight) -> uint64_t {
    std::vector<td_weight_part> parts;
    const auto size = device.weight_pack_size(runner::describe_weight(weight, options.quantization, parts));
    return size ? size.value() : 0;  // a weight that cannot be packed is refused when the model opens
  };
  TRY_ASSIGN(const td_kv_layout kv, runner::kv_layout_of(device, view.config, activations, options));
  const uint64_t kv_layer_bytes = kv.layer_stride / kv.block_tokens;
  view.body = graph::cost_of(view.graphs.body, row_bytes, weight_bytes, kv_layer_bytes);
  view.head = graph::cost_of(view.graphs.head, row_bytes, weight_bytes, kv_layer_bytes);
  for (const graph::Weight& weight : view.graphs.body.weights) view.body_weight_bytes.push_back(weight_bytes(weight));
  for (const graph::Weight& weight : view.graphs.head.weights) view.head_weight_bytes.push_back(weight_bytes(weight));
  const bool reuse = view.passes.has("plan_memory");
  const graph::RowCounts rows{view.max_tokens, 64};
  view.arena_bytes = std::max(graph::plan_memory(view.graphs.body, rows, row_bytes, reuse).arena_bytes,
                              graph::plan_memory(view.graphs.head, rows, row_bytes, reuse).arena_bytes);
  return view;
}

}  // namespace tandem::apps
