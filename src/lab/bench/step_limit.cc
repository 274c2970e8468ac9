#include "lab/bench/step_limit.h"

#include <algorithm>
#include <array>

namespace tandem::bench {
namespace {

constexpr std::string_view kNames[] = {"int8", "bf16", "f32", "memory"};
constexpr size_t kMemory = 3;

}  // namespace

double Peaks::of(Arithmetic arithmetic) const {
  switch (arithmetic) {
    case Arithmetic::kInt8: return int8;
    case Arithmetic::kBf16: return bf16;
    case Arithmetic::kF32: return f32;
  }
  return 0;
}

LimitTime limit_time(const std::vector<OpCost>& ops, const std::vector<StepWork>& steps, const Peaks& peaks) {
  std::array<double, 4> seconds{};  // by what binds
  for (const StepWork& step : steps) {
    for (const OpCost& op : ops) {
      const double rows = op.is_head ? step.head_rows : step.rows;
      if (rows == 0) continue;
      const double peak = peaks.of(op.arithmetic);
      if (peak <= 0 || peaks.memory <= 0) return {};
      const double read_s = (op.weight_bytes + step.keys_read * op.kv_bytes_per_key) / peaks.memory;
      const double compute_s = (rows * op.ops_per_row + step.keys_seen * op.ops_per_key) / peak;
      seconds[read_s >= compute_s ? kMemory : static_cast<size_t>(op.arithmetic)] += std::max(read_s, compute_s);
    }
  }
  LimitTime limit;
  for (const double part : seconds) limit.seconds += part;
  const auto longest = std::max_element(seconds.begin(), seconds.end());
  if (limit.seconds > 0) limit.name = kNames[longest - seconds.begin()];
  return limit;
}

}  // namespace tandem::bench
