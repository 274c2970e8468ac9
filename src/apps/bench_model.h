#pragma once
// What `bench engine` measures: a model of a file or one of random weights, and what its ops cost at least.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/model_view.h"
#include "base/options.h"
#include "lab/bench/step_limit.h"
#include "serve/runner/model_runner.h"

namespace tandem::apps {

struct BenchModel {
  std::string name;   // as asked for
  std::string path;   // empty: random weights
  std::vector<uint8_t> random_bytes;  // `view.files` borrow them
  ModelView view;
};

// Exactly one of MODEL and --random must be given.
Status check_bench_source(const std::vector<std::string>& positionals, const OptionValues& values);

// MODEL of the positionals, or the model of --random. `options` then name its path, and keep no pack cache for random
// weights. --write-gguf is obeyed.
Result<BenchModel> open_bench_model(const std::vector<std::string>& positionals, const OptionValues& values,
                                    runner::RunnerOptions& options);

// Linears count as arithmetic of their activations' type, attention as that of the KV's.
std::vector<bench::OpCost> op_costs(const ModelView& view, const td_kv_layout& kv_layout);

}  // namespace tandem::apps
