#pragma once
// A model's configuration and graphs without its weights being packed: what inspect shows, and where bench has the
// model's sizes from.

#include <memory>
#include <string>
#include <vector>

#include "base/options.h"
#include "compute/device/device.h"
#include "compute/graph/passes.h"
#include "compute/graph/plan.h"
#include "compute/model/build_graph.h"
#include "compute/model/weight_file.h"
#include "serve/runner/model_runner.h"

namespace tandem::apps {

struct ModelView {
  model::WeightFiles files;
  model::ModelConfig config;
  model::Activations activations = model::Activations::kF32;
  model::ModelGraphs graphs;     // borrow files
  graph::PassChoice passes;      // that ran
  graph::GraphCost body, head;
  std::vector<uint64_t> body_weight_bytes, head_weight_bytes;  // as the device packs them, by WeightId
  uint64_t arena_bytes = 0;      // for steps of `max_tokens`
  uint32_t max_tokens = 512;
};

// `passes` as in --passes. Takes --activations, --quantization, --kv-cache-dtype and --block-size from
// `values`, as far as the command has them.
Result<ModelView> view_model(const std::string& model, const OptionValues& values, const std::string& passes);

// The same of files that are open.
Result<ModelView> view_files(model::WeightFiles files, const runner::RunnerOptions& options, const std::string& passes);

}  // namespace tandem::apps
