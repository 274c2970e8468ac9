#include <fmt/format.h>

#include <algorithm>

#include "apps/bench_model.h"
#include "apps/subcommands.h"
#include "apps/wiring.h"
#include "base/json.h"
#include "lab/bench/engine_measurement.h"
#include "lab/limits/machine_limits.h"
#include "lab/limits/plain_read.h"

namespace tandem::apps {
namespace {

struct Report {
  limits::MachineLimits machine;
  uint32_t num_threads = 1;
  std::string model;
  std::string architecture;
  std::string activations;
  uint64_t weight_bytes = 0;
  double kv_bytes_per_token = 0;
  uint64_t activation_bytes_per_token = 0;  // between ops, read and written
  std::vector<bench::OpCost> ops;
  bench::BenchConfig config;
  bench::Peaks peaks;
  std::vector<bench::Measurement> measurements;

  bench::LimitShare share(const bench::Measurement& measurement) const {
    return bench::limit_share(measurement, ops, config, peaks);
  }
};

void describe_model(const ModelView& view, const runner::ModelRunner& runner, Report& report) {
  report.architecture = view.config.architecture;
  report.activations = model::activations_name(runner.activations());
  report.weight_bytes = view.body.weight_bytes + view.head.weight_bytes;
  report.kv_bytes_per_token =
      static_cast<double>(runner.kv_layout().block_stride) / static_cast<double>(runner.block_tokens());
  report.activation_bytes_per_token = view.body.activation_bytes_read + view.body.activation_bytes_written +
                                      view.head.activation_bytes_read + view.head.activation_bytes_written;
  report.ops = op_costs(view, runner.kv_layout());
}

// The better of two measurements: the machine can do what it once did.
void keep_better(const limits::MachineLimits& other, limits::MachineLimits& machine) {
  for (size_t i = 0; i < machine.limits.size() && i < other.limits.size(); ++i) {
    if (other.limits[i].best > machine.limits[i].best) machine.limits[i] = other.limits[i];
  }
}

void set_peaks(Report& report) {
  const auto peak = [&](std::string_view name) { return report.machine.peak(name, report.num_threads); };
  report.peaks = {0, peak("int8"), peak("bf16"), peak("f32")};
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
    json.key("read_gb_per_s").number(share.read_bytes_per_s * 1e-9);
    json.key("reads_were_steady").boolean(share.is_steady);
  }
  json.end_object();
}

// Of those around the repetitions; 0 without limits.
double fastest_reads(const Report& report) {
  double fastest = 0;
  for (const bench::Measurement& measurement : report.measurements) {
    for (const bench::Repetition& repetition : measurement.repetitions) {
      fastest = std::max(fastest, repetition.read_bytes_per_s);
    }
  }
  return fastest;
}

std::string report_json(const Report& report) {
  JsonWriter json;
  json.begin_object().key("machine").begin_object();
  json.key("cpu").string(report.machine.cpu);
  json.key("threads").unsigned_integer(report.num_threads);
  json.key("memory_bytes_per_s").number(fastest_reads(report));
  const bool is_int8 = report.activations == "int8", is_bf16 = report.activations == "bf16";
  json.key("compute_ops_per_s").number(is_int8 ? report.peaks.int8 : is_bf16 ? report.peaks.bf16 : report.peaks.f32);
  json.key("int8_ops_per_s").number(report.peaks.int8);
  json.key("bf16_ops_per_s").number(report.peaks.bf16);
  json.key("f32_ops_per_s").number(report.peaks.f32);
  json.end_object().key("model").begin_object();
  json.key("name").string(report.model);
  json.key("architecture").string(report.architecture);
  json.key("activations").string(report.activations);
  json.key("weight_bytes").unsigned_integer(report.weight_bytes);
  json.key("kv_bytes_per_token").number(report.kv_bytes_per_token);
  json.key("activation_bytes_per_token").unsigned_integer(report.activation_bytes_per_token);
  json.end_object().key("results").begin_array();
  for (const bench::Measurement& measurement : report.measurements) write_result(report, measurement, json);
  json.end_array().end_object();
  return json.take();
}

void print_table(const Report& report) {
  fmt::print("{} ({}, {} activations), {} threads, {}\n", report.model, report.architecture, report.activations,
             report.num_threads, report.machine.cpu.empty() ? "limits not measured" : report.machine.cpu);
  fmt::print("{:<8} {:>7} {:>6} {:>6} {:>12} {:>8} {:>8} {:>7}  {}\n", "KIND", "TOKENS", "BATCH", "DEPTH", "TOKENS/S",
             "SPREAD", "OF LIMIT", "GB/S", "LIMIT");
  bool all_steady = true;
  for (const bench::Measurement& measurement : report.measurements) {
    const bench::LimitShare share = report.share(measurement);
    const bool has_limit = !share.name.empty();
    all_steady = all_steady && share.is_steady;
    fmt::print("{:<8} {:>7} {:>6} {:>6} {:>12.1f} {:>7.1f}% {:>8} {:>7}  {}{}\n", kind_name(measurement),
               measurement.point.num_tokens, measurement.point.batch, measurement.point.depth, measurement.tokens_per_s,
               measurement.spread * 100, has_limit ? fmt::format("{:.0f}%", share.fraction * 100) : "-",
               has_limit ? fmt::format("{:.1f}", share.read_bytes_per_s * 1e-9) : "-", share.name,
               share.is_steady ? "" : " *");
  }
  if (!all_steady) fmt::print("* reads just before and just after differ by more than 5 %\n");
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

Status set_config(const OptionValues& values, const runner::RunnerOptions& options, const runner::ModelRunner& runner,
                  uint32_t window, Report& report) {
  bench::BenchConfig& config = report.config;
  config.block_size = runner.block_tokens();
  config.num_blocks = runner.num_blocks();
  config.vocab_size = runner.vocab_size();
  config.max_model_len = runner.max_model_len();
  config.chunk = options.max_batched_tokens;
  config.num_repetitions = static_cast<uint32_t>(values.integer("repetitions"));
  config.window = window;
  if (!values.is_on("limits")) return Done{};
  TRY_ASSIGN(limits::PlainRead reader, limits::PlainRead::create(runner.linear_bytes(), report.num_threads));
  config.read_meter = [reader = std::move(reader)] { return reader.bytes_per_s(); };
  return Done{};
}

}  // namespace

Result<int> run_bench_engine(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  if (const Status source = check_bench_source(invocation.positionals, values); !source) {
    fmt::print(stderr, "tandem: {}\n", source.error().message);
    return kExitUsage;
  }
  const std::vector<bench::Point> points = bench::points_of(values.integers("n-prompt"), values.integers("n-gen"),
                                                            values.integers("n-depth"), values.integers("batch-size"));
  TRY_ASSIGN(runner::RunnerOptions options, runner_options(values, ""));
  fit_to_points(points, options);

  Report report;
  limits::LimitOptions limit_options;
  limit_options.only_peaks = true;
  limit_options.num_threads = report.num_threads = options.num_threads != 0 ? options.num_threads
                                                                            : limits::num_usable_cores();
  options.num_threads = report.num_threads;
  const bool has_limits = values.is_on("limits");
  if (has_limits) {
    TRY_ASSIGN(report.machine, limits::measure_limits(limit_options));
  }
  TRY_ASSIGN(BenchModel model, open_bench_model(invocation.positionals, values, options));
  TRY_ASSIGN(const std::unique_ptr<runner::ModelRunner> runner,
             runner::ModelRunner::open(options, model.view.files));
  if (!model.path.empty()) limit_cache_beside(values, model.path, *runner);
  report.model = model.name;
  describe_model(model.view, *runner, report);
  TRY(set_config(values, options, *runner, model.view.config.sliding_window, report));

  const SystemClock clock;
  bench::EngineBench engine_bench(*runner, clock, report.config);
  for (const bench::Point& point : points) {
    TRY_ASSIGN(bench::Measurement measurement, engine_bench.measure(point));
    report.measurements.push_back(std::move(measurement));
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
