#pragma once
// RunnerMemory: a ModelRunner's KV pool as the data plane of a cluster node moves it.

#include <memory>

#include "cluster/node/kv_memory.h"
#include "serve/runner/model_runner.h"

namespace tandem::apps {

// How many groups of layers a hand-off moves one after the other: few enough that a frame is large.
uint32_t num_layer_groups(const runner::ModelRunner& runner);

class RunnerMemory final : public node::KvMemory {
 public:
  // The runner outlives it. kInvalidArgument: its device cannot move KV beside its engine.
  static Result<std::unique_ptr<RunnerMemory>> over(runner::ModelRunner& runner);

  uint32_t part_bytes() const override { return part_bytes_; }
  Status read_part(kv::BlockId block, uint32_t layer_group, std::byte* to) override {
    return runner_.read_kv(block, layer_group * layers_, layers_, to);
  }
  Status write_part(kv::BlockId block, uint32_t layer_group, const std::byte* from) override {
    return runner_.write_kv(block, layer_group * layers_, layers_, from);
  }
  uint32_t slot_bytes() const override { return slot_bytes_; }
  Status read_slots(kv::BlockId block, uint32_t begin, uint32_t count, std::byte* to) override {
    return runner_.read_kv_slots(block, begin, count, to);
  }
  Status write_slots(kv::BlockId block, uint32_t begin, uint32_t count, const std::byte* from) override {
    return runner_.write_kv_slots(block, begin, count, from);
  }

 private:
  RunnerMemory(runner::ModelRunner& runner, uint32_t layers, uint32_t part_bytes, uint32_t slot_bytes)
      : runner_(runner), layers_(layers), part_bytes_(part_bytes), slot_bytes_(slot_bytes) {}

  runner::ModelRunner& runner_;
  const uint32_t layers_;  // of a group
  const uint32_t part_bytes_, slot_bytes_;
};

}  // namespace tandem::apps
