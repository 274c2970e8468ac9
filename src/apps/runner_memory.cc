#include "apps/runner_memory.h"

#include <memory>

namespace tandem::apps {
namespace {

constexpr uint32_t kMostGroups = 4;

}  // namespace

uint32_t num_layer_groups(const runner::ModelRunner& runner) {
  uint32_t groups = kMostGroups;
  while (runner.config().num_layers % groups != 0) --groups;
  return groups;
}

Result<std::unique_ptr<RunnerMemory>> RunnerMemory::over(runner::ModelRunner& runner) {
  const uint64_t slot_bytes = runner.kv_slot_bytes();
  if (slot_bytes == 0 || !runner.has_host_visible_kv()) {
    return Error{ErrorCode::kInvalidArgument, runner.device_name() + " cannot move KV beside its engine"};
  }
  const uint32_t layers = runner.config().num_layers / num_layer_groups(runner);
  return std::unique_ptr<RunnerMemory>(new RunnerMemory(runner, layers,
                                                        static_cast<uint32_t>(layers * runner.kv_layout().layer_stride),
                                                        static_cast<uint32_t>(slot_bytes)));
}

}  // namespace tandem::apps
