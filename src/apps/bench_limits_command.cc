#include <fmt/format.h>

#include "apps/subcommands.h"
#include "base/json.h"
#include "lab/limits/machine_limits.h"

namespace tandem::apps {
namespace {

std::string limits_json(const limits::MachineLimits& machine) {
  JsonWriter json;
  json.begin_object().key("machine").begin_object();
  json.key("cpu").string(machine.cpu);
  json.key("threads").unsigned_integer(machine.num_threads);
  json.end_object().key("limits").begin_array();
  for (const limits::Limit& limit : machine.limits) {
    json.begin_object();
    json.key("limit").string(limit.name);
    json.key("threads").unsigned_integer(limit.num_threads);
    json.key("best").number(limit.best);
    json.key("median").number(limit.median);
    json.key("unit").string(limit.unit);
    if (limit.working_set_bytes > 0) json.key("working_set_bytes").unsigned_integer(limit.working_set_bytes);
    json.key("how").string(limit.how);
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

// "512 KiB", "64 MiB"; empty for none.
std::string size_text(uint64_t bytes) {
  if (bytes == 0) return "";
  return bytes < 1 << 20 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

}  // namespace

Result<int> run_bench_limits(const cli::Invocation& invocation) {
  limits::LimitOptions options;
  const OptionValues& values = invocation.values;
  if (values.has("threads")) options.num_threads = static_cast<uint32_t>(values.integer("threads"));
  options.num_repetitions = static_cast<uint32_t>(values.integer("repetitions"));
  options.read_bytes = static_cast<uint64_t>(values.integer("read-memory"));
  TRY_ASSIGN(const limits::MachineLimits machine, limits::measure_limits(options));
  if (values.is_on("json")) {
    fmt::print("{}\n", limits_json(machine));
    return kExitDone;
  }
  fmt::print("{}\n{:<8} {:>8} {:>7} {:>10} {:>10}  {:<6} {}\n", machine.cpu, "LIMIT", "SET", "THREADS", "BEST",
             "MEDIAN", "UNIT", "HOW");
  for (const limits::Limit& limit : machine.limits) {
    fmt::print("{:<8} {:>8} {:>7} {:>10.1f} {:>10.1f}  {:<6} {}\n", limit.name, size_text(limit.working_set_bytes),
               limit.num_threads, limit.best, limit.median, limit.unit, limit.how);
  }
  return kExitDone;
}

}  // namespace tandem::apps
