// ModelRunner: opening a model. What runs at each step is in model_runner.cc.

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "compute/graph/memory_plan.h"
#include "compute/graph/plan.h"
#include "compute/model/rope_table.h"
#include "compute/model/weight_names.h"
#include "serve/runner/file_hash.h"
#include "serve/runner/memory_budget.h"
#include "serve/runner/model_runner.h"

namespace tandem::runner {
namespace {

constexpr double kKvShare = 0.4;

// Mapped weights are cached file pages, which the system counts as available: but every step needs them.
uint64_t memory_beside(const PackedWeights& weights) {
  const uint64_t available = available_memory_bytes();
  return weights.cache_file().empty() ? available : available - std::min(available, weights.size_bytes());
}

graph::RowBytes row_bytes_of(const device::Device& device) {
  return [&device](td_format format, uint32_t columns) { return device.row_bytes(format, columns); };
}

std::vector<uint32_t> layer_ends_of(const graph::Plan& body, uint32_t num_layers) {
  std::vector<uint32_t> ends(num_layers, 0);
  for (uint32_t i = 0; i < body.ops.size(); ++i) {
    const td_op& op = body.ops[i];
    if (op.kind == TD_OP_KV_WRITE || op.kind == TD_OP_ROPE_KV_WRITE) ends[op.layer] = i + 1;
  }
  // Layers are computed one after the other.
  TANDEM_CHECK(std::ranges::is_sorted(ends) && (ends.empty() || ends.front() > 0));
  return ends;
}

// Of `packed`, the weights of `all`: those that `graph` has too, in its order. Each is packed once.
std::vector<td_weight> weights_among(const graph::Graph& graph, const graph::Graph& all,
                                     std::span<const td_weight> packed) {
  std::vector<td_weight> weights;
  for (const graph::Weight& weight : graph.weights) {
    const auto same = std::ranges::find(all.weights, weight.name, &graph::Weight::name);
    TANDEM_CHECK(same != all.weights.end() && same->use == weight.use);
    weights.push_back(packed[static_cast<size_t>(same - all.weights.begin())]);
  }
  return weights;
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::open(const RunnerOptions& options) {
  TRY_ASSIGN(const model::WeightFiles files, model::WeightFiles::open(options.model_path));
  return open(options, files);
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::open(const RunnerOptions& options, const model::WeightFiles& files) {
  TRY_ASSIGN(const device::Plugin plugin, device::Plugin::from_entry(options.plugin));
  const td_device_options device_options{options.num_threads, 0, options.isa.c_str()};
  TRY_ASSIGN(device::Device device, device::Device::open(plugin, 0, device_options));
  std::unique_ptr<ModelRunner> runner(new ModelRunner(std::move(device)));
  TRY(runner->load(options, files));
  return runner;
}

Status ModelRunner::load(const RunnerOptions& options, const model::WeightFiles& files) {
  TRY_ASSIGN(config_, model::read_config(files));
  TRY_ASSIGN(const model::ModelTensors tensors, model::collect(files, config_));
  if (options.max_model_len > config_.max_position) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("--max-model-len {} is more than the model's {} positions",
                                                          options.max_model_len, config_.max_position)};
  }
  const uint32_t wanted_len = options.max_model_len != 0 ? options.max_model_len : config_.max_position;
  activations_ = options.activations.value_or(model::default_activations(tensors, options.quantization));
  TRY_ASSIGN(kv_layout_, kv_layout_of(device_, config_, activations_, options));
  // A file may claim any length; tables are made for what memory could hold the KV of.
  max_model_len_ = static_cast<uint32_t>(std::min<uint64_t>(wanted_len, most_positions(options)));
  const std::vector<float> rope_table = model::rope_cos_sin(config_.rope, config_.head_dim, max_model_len_);
  const model::BuildOptions build{activations_, options.quantization, rope_table, max_model_len_};
  TRY_ASSIGN(model::ModelGraphs graphs, model::build_graphs(config_, tensors, build));
  TRY_ASSIGN(const graph::PassChoice passes, graph::parse_passes(options.passes));
  graph::run_passes(graphs.body, passes);
  graph::run_passes(graphs.head, passes);

  PackOptions pack{options.quantization, options.pack_cache_directory, {}};
  if (!pack.cache_directory.empty()) pack.file_hash = cached_file_hash(files, pack.cache_directory);
  TRY_ASSIGN(weights_, PackedWeights::create(device_, {&graphs.body, &graphs.head}, pack));
  TRY(choose_kv_blocks(options, wanted_len));
  TRY(make_plans(options, graphs, passes.has("plan_memory")));
  return make_fingerprint(rope_table);
}

Result<td_kv_layout> kv_layout_of(device::Device& device, const model::ModelConfig& config,
                                  model::Activations activations, const RunnerOptions& options) {
  td_kv_layout layout{};
  const KvType automatic = activations == model::Activations::kF32 ? KvType::kF32 : KvType::kBF16;
  switch (options.kv_type == KvType::kAuto ? automatic : options.kv_type) {
    case KvType::kF32: layout.kind = TD_KV_F32; break;
    case KvType::kInt8: layout.kind = TD_KV_INT8; break;
    default: layout.kind = TD_KV_BF16; break;
  }
  layout.block_tokens = options.block_tokens;
  layout.num_layers = config.num_layers;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  TRY(device.fill_kv_layout(layout));
  return layout;
}

// An upper bound of the positions that the pool will hold.
uint64_t ModelRunner::most_positions(const RunnerOptions& options) const {
  uint64_t num_blocks = options.num_kv_blocks;
  if (num_blocks == 0) {
    const uint64_t memory = options.kv_memory_bytes != 0 ? options.kv_memory_bytes : available_memory_bytes();
    num_blocks = std::max<uint64_t>(memory / kv_layout_.block_stride, 1);
  }
  return num_blocks * options.block_tokens;
}

Status ModelRunner::choose_kv_blocks(const RunnerOptions& options, uint32_t wanted_len) {
  uint64_t num_blocks = options.num_kv_blocks;
  if (num_blocks == 0) {
    const uint64_t memory = options.kv_memory_bytes != 0
                                ? options.kv_memory_bytes
                                : static_cast<uint64_t>(kKvShare * static_cast<double>(memory_beside(weights_)));
    num_blocks = memory / kv_layout_.block_stride;
    // More than every sequence at full length is never used.
    const uint64_t blocks_per_sequence = (max_model_len_ + options.block_tokens - 1) / options.block_tokens;
    num_blocks = std::min(num_blocks, blocks_per_sequence * options.max_sequences);
  }
  if (num_blocks == 0) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("no room for one KV block of {} bytes; give more with --kv-memory",
                             kv_layout_.block_stride)};
  }
  num_blocks_ = static_cast<uint32_t>(std::min<uint64_t>(num_blocks, UINT32_MAX - 1));
  const uint64_t pool_tokens = uint64_t{num_blocks_} * options.block_tokens;
  if (pool_tokens < wanted_len) {
    log_warning("serve/runner", "context lowered to what the KV pool holds",
                {{"from", std::to_string(wanted_len)}, {"to", std::to_string(pool_tokens)}});
  }
  max_model_len_ = static_cast<uint32_t>(std::min<uint64_t>(max_model_len_, pool_tokens));
  TRY_ASSIGN(kv_, device_.alloc(uint64_t{num_blocks_} * kv_layout_.block_stride));
  return Done{};
}

Status ModelRunner::make_plans(const RunnerOptions& options, const model::ModelGraphs& graphs, bool reuses_memory) {
  const graph::RowBytes row_bytes = row_bytes_of(device_);
  const graph::RowCounts rows{options.max_batched_tokens, kHeadRows};
  const graph::Plan body = lower(graphs.body, plan_memory(graphs.body, rows, row_bytes, reuses_memory), row_bytes);
  const graph::Plan head = lower(graphs.head, plan_memory(graphs.head, rows, row_bytes, reuses_memory), row_bytes);
  const graph::Plan pool = lower(graphs.pool, plan_memory(graphs.pool, rows, row_bytes, reuses_memory), row_bytes);

  td_plan_desc desc{};
  desc.max_tokens = options.max_batched_tokens;
  desc.max_outputs = kHeadRows;
  desc.max_sequences = options.max_sequences;
  desc.max_positions = max_model_len_;
  desc.kv = kv_layout_;
  desc.arena_bytes = std::max({body.arena_bytes, head.arena_bytes, pool.arena_bytes});
  const auto create = [&](const graph::Plan& plan, std::span<const td_weight> weights) {
    desc.ops = plan.ops.data();
    desc.num_ops = static_cast<uint32_t>(plan.ops.size());
    desc.weights = weights.data();
    desc.num_weights = static_cast<uint32_t>(weights.size());
    return device_.create_plan(desc);
  };
  const std::vector<td_weight> pool_weights = weights_among(graphs.pool, graphs.head, weights_.of_graph(1));
  TRY_ASSIGN(device::DevicePlan body_plan, create(body, weights_.of_graph(0)));
  TRY_ASSIGN(device::DevicePlan head_plan, create(head, weights_.of_graph(1)));
  TRY_ASSIGN(device::DevicePlan pool_plan, create(pool, pool_weights));
  body_ = std::make_unique<device::DevicePlan>(std::move(body_plan));
  head_ = std::make_unique<device::DevicePlan>(std::move(head_plan));
  pool_ = std::make_unique<device::DevicePlan>(std::move(pool_plan));

  layer_ends_ = layer_ends_of(body, config_.num_layers);
  num_body_ops_ = static_cast<uint32_t>(body.ops.size());
  logits_row_bytes_ = row_bytes(TD_F32, config_.vocab);
  hidden_row_bytes_ = row_bytes(TD_F32, config_.hidden);
  // A nested step has few rows: of what it has as its own, most is never touched.
  for (uint32_t i = 0; i < (options.nests_steps && body_->has_parts() ? 2u : 1u); ++i) {
    TRY_ASSIGN(Step step, make_step(desc.arena_bytes, options.max_batched_tokens));
    steps_.push_back(std::move(step));
  }
  TRY_ASSIGN(device::Stream stream, device_.create_stream());
  stream_ = std::make_unique<device::Stream>(std::move(stream));
  is_host_visible_ = device_.properties().host_visible != 0;
  return Done{};
}

Result<ModelRunner::Step> ModelRunner::make_step(uint64_t arena_bytes, uint32_t max_tokens) {
  Step step;
  TRY_ASSIGN(step.arena, device_.alloc(arena_bytes));
  TRY_ASSIGN(step.hidden, device_.alloc(device_.row_bytes(TD_F32, config_.hidden) * max_tokens));
  TRY_ASSIGN(step.normed, device_.alloc(hidden_row_bytes_ * kHeadRows));
  TRY_ASSIGN(step.logits, device_.alloc(logits_row_bytes_ * kHeadRows));
  if (device_.properties().host_visible == 0) step.host_logits.resize(logits_row_bytes_ * kHeadRows / sizeof(float));
  return step;
}

std::vector<std::span<const uint8_t>> ModelRunner::linear_bytes() const {
  std::vector<std::span<const uint8_t>> spans;
  if (device_.properties().host_visible == 0) return spans;
  for (const size_t graph : {0, 1}) {
    for (const td_weight& weight : weights_.of_graph(graph)) {
      if (weight.desc.use != TD_WEIGHT_LINEAR) continue;
      spans.emplace_back(static_cast<const uint8_t*>(weight.address), weight.size_bytes);
    }
  }
  return spans;
}

Status ModelRunner::make_fingerprint(std::span<const float> rope_table) {
  TRY_ASSIGN(const std::string device_digest, device_.fingerprint());
  Hasher hasher;
  const std::string formats = fmt::format("contract 1;{};{};kv {};", device_digest,
                                          model::activations_name(activations_), static_cast<int>(kv_layout_.kind));
  hasher.update(formats.data(), formats.size());
  // The first positions stand for the table: libm differs in bits, not in ranges.
  const size_t checked = std::min<size_t>(rope_table.size(), size_t{256} * config_.head_dim);
  hasher.update(rope_table.data(), checked * sizeof(float));
  fingerprint_ = hasher.hex();
  return Done{};
}

}  // namespace tandem::runner
