#pragma once
// ModelRunner: a model on a device, as a StepExecutor: Batch to device work to tokens. The one place where serve/ and
// compute/ meet. Everything is allocated when it opens; a step allocates nothing of size.
//
// One thread at a time (the engine's).

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "compute/device/device.h"
#include "compute/graph/passes.h"
#include "compute/model/build_graph.h"
#include "compute/model/weight_file.h"
#include "compute/sampling/sampler.h"
#include "serve/runner/packed_weights.h"
#include "serve/sched/batch.h"

namespace tandem::runner {

enum class KvType : uint8_t { kAuto, kBF16, kF32, kInt8 };  // auto: bf16, or f32 with f32 activations

struct RunnerOptions {
  std::string model_path;                   // .gguf or directory
  td_plugin_entry plugin = nullptr;         // the device's entry
  uint32_t num_threads = 0;                 // of a CPU device; 0: all cores
  std::string isa;                          // of a CPU device; empty: the best
  std::optional<model::Activations> activations;  // absent: what suits the weights
  KvType kv_type = KvType::kAuto;
  td_quantization quantization = TD_QUANTIZE_NONE;
  uint32_t block_tokens = 16;
  uint32_t num_kv_blocks = 0;               // 0: from kv_memory_bytes
  uint64_t kv_memory_bytes = 0;             // 0: 40 % of what is available beside the weights
  uint32_t max_model_len = 0;               // 0: the model's
  uint32_t max_batched_tokens = 512;
  uint32_t max_sequences = 64;
  bool nests_steps = false;                 // a step may run in the middle of another, with activations of its own
  std::string pack_cache_directory;         // empty: weights are packed at every start
  std::string passes = "all";
};

// How `device` keeps this model's KV under these options.
Result<td_kv_layout> kv_layout_of(device::Device& device, const model::ModelConfig& config,
                                  model::Activations activations, const RunnerOptions& options);

class ModelRunner final : public sched::StepExecutor {
 public:
  // Opens the files. kNotFound, kCorrupt or kInvalidArgument name file, tensor and reason.
  static Result<std::unique_ptr<ModelRunner>> open(const RunnerOptions& options);
  // The same with files that the caller has opened (to read the tokenizer meanwhile).
  static Result<std::unique_ptr<ModelRunner>> open(const RunnerOptions& options, const model::WeightFiles& files);
  ~ModelRunner() override;

  Result<sched::StepOutcome> execute(const sched::Batch& batch) override { return run(batch, nullptr); }
  // Told after each layer's KV write, where the device can run a plan in parts.
  Result<sched::StepOutcome> execute_observed(const sched::Batch& batch, sched::StepObserver& observer) override {
    return run(batch, &observer);
  }
  bool nests_steps() const override { return steps_.size() > 1; }

  // The KV of `num_layers` layers of a block from `layer` on, kv_layout().layer_stride bytes each, as the device keeps
  // it: equal fingerprints, equal bytes. On a device that the host can see also beside execute(), from another thread,
  // for blocks that the running step does not write; else from the engine's thread.
  Status read_kv(kv::BlockId block, uint32_t layer, uint32_t num_layers, void* to);
  Status write_kv(kv::BlockId block, uint32_t layer, uint32_t num_layers, const void* from);
  // Positions [begin, begin + count) of a block, all layers, kv_slot_bytes() each: exactly their bytes, so also of a
  // block whose other positions the running step writes. kv_slot_bytes() 0: this device has no such copies.
  uint64_t kv_slot_bytes() const { return device_.kv_slot_bytes(kv_layout_); }
  Status read_kv_slots(kv::BlockId block, uint32_t begin, uint32_t count, void* to);
  Status write_kv_slots(kv::BlockId block, uint32_t begin, uint32_t count, const void* from);

  // For measurements: `observer` sees every row of logits that a step computes, with the batch's item and the position
  // of the row. Empty: none.
  using LogitsObserver = std::function<void(uint32_t item, uint32_t position, std::span<const float> logits)>;
  void observe_logits(LogitsObserver observer) { on_logits_ = std::move(observer); }

  const model::ModelConfig& config() const { return config_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint32_t block_tokens() const { return kv_layout_.block_tokens; }
  uint32_t max_model_len() const { return max_model_len_; }  // lowered when the pool is smaller
  uint32_t vocab_size() const { return config_.vocab; }
  const td_kv_layout& kv_layout() const { return kv_layout_; }
  bool has_host_visible_kv() const { return is_host_visible_; }
  // Hash of the device's self-test, the RoPE table, formats and the model's kind (docs/numerics.md): nodes of equal
  // fingerprints give equal bits.
  const std::string& fingerprint() const { return fingerprint_; }
  std::string device_name() const { return device_.properties().name; }
  uint64_t weight_bytes() const { return weights_.size_bytes(); }
  // The packed matrices, for measuring how fast they can be read. Empty when the device's memory is not the host's.
  std::vector<std::span<const uint8_t>> linear_bytes() const;
  bool weights_were_cached() const { return weights_.was_cached(); }
  std::string packed_file() const { return weights_.cache_file(); }  // empty: none is mapped
  model::Activations activations() const { return activations_; }

 private:
  // One head launch handles this many rows, so that scoring a long prompt needs no giant buffer.
  static constexpr uint32_t kHeadRows = 64;

  // A row whose logits are wanted, and by whom.
  struct OutputRow {
    uint32_t item;      // of the batch
    uint32_t position;  // of the row's token in its sequence
    bool is_sampled;    // chooses the next token
    bool is_scored;     // gives the log-probability of the prompt's next token
  };

  explicit ModelRunner(device::Device device) : device_(std::move(device)) {}
  Status load(const RunnerOptions& options, const model::WeightFiles& files);
  uint64_t most_positions(const RunnerOptions& options) const;
  Status choose_kv_blocks(const RunnerOptions& options, uint32_t wanted_len);
  Status make_plans(const RunnerOptions& options, const model::ModelGraphs& graphs, bool reuses_memory);
  Status make_fingerprint(std::span<const float> rope_table);

  uint8_t* kv_address(kv::BlockId block, uint32_t layer, uint32_t num_layers);
  // What a step works with; capacity is kept.
  struct Step {
    device::Buffer arena, hidden, logits, normed;
    std::vector<int32_t> token_ids;
    std::vector<td_sequence> sequences;
    std::vector<uint32_t> blocks;
    std::vector<uint8_t> row_faults;
    std::vector<OutputRow> outputs;
    std::vector<uint32_t> output_rows;
    std::vector<td_block_copy> copies;
    std::vector<float> host_logits;  // when the device's memory is not the host's
    std::vector<uint32_t> pooled_rows;
    std::vector<uint32_t> pooled_items;  // by pooled row: whose it is
    std::vector<uint8_t> host_normed;
    sampling::Scratch scratch;
  };

  Result<Step> make_step(uint64_t arena_bytes, uint32_t max_tokens);
  Result<sched::StepOutcome> run(const sched::Batch& batch, sched::StepObserver* observer);
  Result<sched::StepOutcome> run_in(Step& step, const sched::Batch& batch, sched::StepObserver* observer);
  Status run_body(Step& step, const sched::Batch& batch, sched::StepObserver* observer);
  Status launch_body(const td_bindings& bindings, sched::StepObserver* observer);
  static void collect_outputs(Step& step, const sched::Batch& batch);
  Status pool_rows(Step& step, const sched::Batch& batch, sched::StepOutcome& outcome);
  Status read_normed(Step& step, std::span<const uint32_t> rows);
  Status run_head(Step& step, const sched::Batch& batch, size_t begin, size_t end, sched::StepOutcome& outcome);
  static void choose(Step& step, const sched::BatchItem& item, const OutputRow& row, std::span<const float> logits,
                     sched::ItemOutcome& outcome);

  device::Device device_;
  model::ModelConfig config_;
  model::Activations activations_ = model::Activations::kF32;
  PackedWeights weights_;
  td_kv_layout kv_layout_{};
  uint32_t num_blocks_ = 0;
  uint32_t max_model_len_ = 0;
  std::string fingerprint_;
  LogitsObserver on_logits_;

  device::Buffer kv_;
  bool is_host_visible_ = false;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<device::DevicePlan> body_, head_, pool_;
  std::vector<uint32_t> layer_ends_;  // by layer: the body's op after the one that writes its KV
  uint32_t num_body_ops_ = 0;
  uint64_t logits_row_bytes_ = 0;
  uint64_t hidden_row_bytes_ = 0;

  std::vector<Step> steps_;  // the second is the nested one's
  uint32_t num_running_ = 0;
};

}  // namespace tandem::runner
