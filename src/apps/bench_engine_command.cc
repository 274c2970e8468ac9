#include <fmt/format.h>

#include <algorithm>

#include "apps/model_source.h"
#include "apps/model_view.h"
#include "apps/subcommands.h"
#include "apps/wiring.h"
#include "base/json.h"
#include "lab/bench/engine_measurement.h"
#include "lab/limits/machine_limits.h"

namespace tandem::apps {
namespace {

struct Report {
  limits::MachineLimits machine;
  uint32_t num_threads = 1;
  std::string model;
  std::string architecture;
  std::string activations;
  bench::ModelCost prefill_cost, decode_cost;
  bench::Peaks peaks;
  std::vector<bench::Measurement> measurements;

  bench::LimitShare share(const bench::Measurement& measurement) const {
    const bool is_prefill = measurement.point.kind == bench::Kind::kPrefill;
    return bench::limit_share(measurement, is_prefill ? prefill_cost : decode_cost, peaks);
  }
};

void set_costs(const ModelView& view, const runner::ModelRunner& runner, Report& report) {
  const model::ModelConfig& config = view.config;
  const auto macs_of = [](const graph::Graph& graph) {
    double macs = 0;
    for (const graph::Weight& weight : graph.weights) {
      if (weight.use == TD_WEIGHT_LINEAR) macs += static_cast<double>(weight.n) * weight.k;
    }
    return macs;
  };
  bench::ModelCost& cost = report.prefill_cost;
  cost.weight_bytes = static_cast<double>(view.body.weight_bytes + view.head.weight_bytes);
  cost.kv_bytes_per_token =
      static_cast<double>(runner.kv_layout().block_stride) / static_cast<double>(runner.block_tokens());
  cost.ops_per_token = 2 * macs_of(view.graphs.body);
  cost.ops_per_key = 4.0 * config.num_heads * config.head_dim * config.num_layers;
  // Only a prompt's last row goes through the head; in decode each does.
  report.decode_cost = cost;
  report.decode_cost.ops_per_token += 2 * macs_of(view.graphs.head);
}

// The better of two measurements: the machine can do what it once did.
void keep_better(const limits::MachineLimits& other, limits::MachineLimits& machine) {
  for (size_t i = 0; i < machine.limits.size() && i < other.limits.size(); ++i) {
    if (other.limits[i].best > machine.limits[i].best) machine.limits[i] = other.limits[i];
  }
}

void set_peaks(Report& report) {
  const char* compute = report.activations == "int8" ? "int8" : report.activations == "bf16" ? "bf16" : "f32";
  report.peaks = {report.machine.peak("memory", report.num_threads), report.machine.peak(compute, report.num_threads),
                  compute};
}

const char* kind_name(const bench::Measurement& measurement) {
  return measurement.point.kind == bench::Kind::kPrefill ? "prefill" : "decode";
}

void write_result(const Report& report, const bench::Measurement& measurement, JsonWriter& json) {
  const bench::Point& point = measurement.point;
  const bench::LimitShare share = report.share(measurement);
  json.begin_object();
  json.key("kind").string(kind_name(measurement));
  json.key("prompt").unsigned_integer(point.kind == bench::Kind::kPrefill ? point.num_tokens : 0);
  json.key("generated").unsigned_integer(point.kind == bench::Kind::kDecode ? point.num_tokens : 0);
  json.key("batch").unsigned_integer(point.batch);
  json.key("depth").unsigned_integer(point.depth);
  json.key("threads").unsigned_integer(report.num_threads);
  json.key("tokens_per_s").number(measurement.tokens_per_s);
  json.key("spread").number(measurement.spread);
  if (share.name.empty()) {
    json.key("limit_fraction").null().key("limit").null();
  } else {
    json.key("limit_fraction").number(share.fraction).key("limit").string(share.name);
  }
  json.end_object();
}

std::string report_json(const Report& report) {
  JsonWriter json;
  json.begin_object().key("machine").begin_object();
  json.key("cpu").string(report.machine.cpu);
  json.key("threads").unsigned_integer(report.num_threads);
  json.key("memory_bytes_per_s").number(report.peaks.memory);
  json.key("compute_ops_per_s").number(report.peaks.compute);
  json.end_object().key("model").begin_object();
  json.key("name").string(report.model);
  json.key("architecture").string(report.architecture);
  json.key("activations").string(report.activations);
  json.key("weight_bytes").number(report.prefill_cost.weight_bytes);
  json.key("kv_bytes_per_token").number(report.prefill_cost.kv_bytes_per_token);
  json.end_object().key("results").begin_array();
  for (const bench::Measurement& measurement : report.measurements) write_result(report, measurement, json);
  json.end_array().end_object();
  return json.take();
}

void print_table(const Report& report) {
  fmt::print("{} ({}, {} activations), {} threads, {}\n", report.model, report.architecture, report.activations,
             report.num_threads, report.machine.cpu.empty() ? "limits not measured" : report.machine.cpu);
  fmt::print("{:<8} {:>7} {:>6} {:>6} {:>12} {:>8} {:>8}  {}\n", "KIND", "TOKENS", "BATCH", "DEPTH", "TOKENS/S",
             "SPREAD", "OF LIMIT", "LIMIT");
  for (const bench::Measurement& measurement : report.measurements) {
    const bench::LimitShare share = report.share(measurement);
    fmt::print("{:<8} {:>7} {:>6} {:>6} {:>12.1f} {:>7.1f}% {:>8}  {}\n", kind_name(measurement),
               measurement.point.num_tokens, measurement.point.batch, measurement.point.depth, measurement.tokens_per_s,
               measurement.spread * 100, share.name.empty() ? "-" : fmt::format("{:.0f}%", share.fraction * 100),
               share.name);
  }
}

// The pool and the step that the points need, where the user left them open.
void fit_to_points(const std::vector<bench::Point>& points, runner::RunnerOptions& options) {
  if (options.num_kv_blocks == 0 && options.kv_memory_bytes == 0) {
    options.num_kv_blocks = std::max(bench::blocks_needed(points, options.block_tokens), uint32_t{1});
  }
  options.max_sequences = 1;
  for (const bench::Point& point : points) options.max_sequences = std::max(options.max_sequences, point.batch);
  options.max_batched_tokens = std::max(options.max_batched_tokens, options.max_sequences);
}

}  // namespace

Result<int> run_bench_engine(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  const std::vector<bench::Point> points = bench::points_of(values.integers("n-prompt"), values.integers("n-gen"),
                                                            values.integers("n-depth"), values.integers("batch-size"));
  TRY_ASSIGN(const std::string path, locate_model(invocation.positionals[0]));
  TRY_ASSIGN(runner::RunnerOptions options, runner_options(values, path));
  fit_to_points(points, options);

  Report report;
  report.model = invocation.positionals[0];
  limits::LimitOptions limit_options;
  limit_options.num_threads = report.num_threads = options.num_threads != 0 ? options.num_threads
                                                                            : limits::num_usable_cores();
  options.num_threads = report.num_threads;
  const bool has_limits = values.is_on("limits");
  if (has_limits) {
    TRY_ASSIGN(report.machine, limits::measure_limits(limit_options));
  }
  TRY_ASSIGN(const ModelView view, view_model(path, values, "all"));
  TRY_ASSIGN(const std::unique_ptr<runner::ModelRunner> runner, runner::ModelRunner::open(options, view.files));
  limit_cache_beside(values, path, *runner);
  report.architecture = view.config.architecture;
  report.activations = model::activations_name(runner->activations());
  set_costs(view, *runner, report);

  bench::BenchConfig config;
  config.block_size = runner->block_tokens();
  config.num_blocks = runner->num_blocks();
  config.vocab_size = runner->vocab_size();
  config.max_model_len = runner->max_model_len();
  config.chunk = options.max_batched_tokens;
  config.num_repetitions = static_cast<uint32_t>(values.integer("repetitions"));
  const SystemClock clock;
  bench::EngineBench engine_bench(*runner, clock, config);
  for (const bench::Point& point : points) {
    TRY_ASSIGN(const bench::Measurement measurement, engine_bench.measure(point));
    report.measurements.push_back(measurement);
  }
  if (has_limits) {
    TRY_ASSIGN(const limits::MachineLimits after, limits::measure_limits(limit_options));
    keep_better(after, report.machine);
    set_peaks(report);
  }
  if (values.is_on("json")) fmt::print("{}\n", report_json(report));
  else print_table(report);
  return kExitDone;
}

}  // namespace tandem::apps
