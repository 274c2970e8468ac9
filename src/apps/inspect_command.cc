#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>

#include "apps/model_source.h"
#include "apps/model_view.h"
#include "apps/subcommands.h"
#include "apps/wiring.h"
#include "base/json.h"
#include "compute/graph/dump.h"

namespace tandem::apps {
namespace {

struct TypeTotal {
  uint64_t num_tensors = 0;
  uint64_t num_weights = 0;
  uint64_t size_bytes = 0;
};

std::map<std::string, TypeTotal> totals_by_type(const model::WeightFiles& files) {
  std::map<std::string, TypeTotal> totals;
  for (const model::TensorEntry& tensor : files.tensors()) {
    TypeTotal& total = totals[tensor::dtype_name(tensor.dtype)];
    ++total.num_tensors;
    total.num_weights += tensor.num_elements();
    total.size_bytes += tensor.bytes.size();
  }
  return totals;
}

std::vector<std::pair<const char*, uint64_t>> sizes_of(const model::ModelConfig& config) {
  return {{"layers", config.num_layers},     {"hidden", config.hidden},
          {"heads", config.num_heads},       {"kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},     {"ffn", config.ffn},
          {"vocabulary", config.vocab},      {"max_position", config.max_position},
          {"sliding_window", config.sliding_window}};
}

std::string model_json(const model::WeightFiles& files, const model::ModelConfig& config) {
  JsonWriter json;
  json.begin_object();
  json.key("path").string(files.path());
  json.key("architecture").string(config.architecture);
  for (const auto& [name, size] : sizes_of(config)) json.key(name).unsigned_integer(size);
  json.key("types").begin_object();
  for (const auto& [name, total] : totals_by_type(files)) {
    json.key(name).begin_object();
    json.key("tensors").unsigned_integer(total.num_tensors);
    json.key("weights").unsigned_integer(total.num_weights);
    json.key("bytes").unsigned_integer(total.size_bytes);
    json.end_object();
  }
  json.end_object().key("tensors").begin_array();
  for (const model::TensorEntry& tensor : files.tensors()) {
    json.begin_object();
    json.key("name").string(tensor.name);
    json.key("type").string(tensor::dtype_name(tensor.dtype));
    json.key("shape").begin_array();
    for (const uint64_t size : tensor.shape) json.unsigned_integer(size);
    json.end_array();
    json.key("bytes").unsigned_integer(tensor.bytes.size());
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

// Read and written by one token alone: its activations, its keys and values, and every weight once.
struct TokenTraffic {
  uint64_t read = 0;
  uint64_t written = 0;
};

TokenTraffic traffic_of(const ModelView& view) {
  return {view.body.activation_bytes_read + view.head.activation_bytes_read + view.body.weight_bytes +
              view.head.weight_bytes,
          view.body.activation_bytes_written + view.head.activation_bytes_written + view.body.kv_bytes_written};
}

std::string graph_json(const ModelView& view) {
  const TokenTraffic traffic = traffic_of(view);
  JsonWriter json;
  json.begin_object();
  json.key("ops").unsigned_integer(view.body.num_ops + view.head.num_ops);
  json.key("bytes_read_per_token").unsigned_integer(traffic.read);
  json.key("bytes_written_per_token").unsigned_integer(traffic.written);
  json.key("arena_bytes").unsigned_integer(view.arena_bytes);
  json.key("passes").begin_array();
  for (const std::string& pass : view.passes.names) json.string(pass);
  json.end_array().end_object();
  return json.take();
}

const char* kv_type_name(uint32_t kind) {
  switch (kind) {
    case TD_KV_F32: return "f32";
    case TD_KV_INT8: return "int8";
    default: return "bf16";
  }
}

Status write_file(const std::string& path, const std::string& text) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) {
    return Error{ErrorCode::kUnavailable, "cannot write " + path};
  }
  return Done{};
}

}  // namespace

Result<int> run_inspect_model(const cli::Invocation& invocation) {
  TRY_ASSIGN(const std::string path, locate_model(invocation.positionals[0]));
  TRY_ASSIGN(const model::WeightFiles files, model::WeightFiles::open(path));
  TRY_ASSIGN(const model::ModelConfig config, model::read_config(files));
  if (invocation.values.is_on("json")) {
    fmt::print("{}\n", model_json(files, config));
    return kExitDone;
  }
  fmt::print("{}\narchitecture {}\n", files.path(), config.architecture);
  for (const auto& [name, size] : sizes_of(config)) fmt::print("{} {}\n", name, size);
  for (const auto& [name, total] : totals_by_type(files)) {
    fmt::print("{:<8} {:>5} tensors {:>10.1f} M weights {:>10.1f} MB\n", name, total.num_tensors,
               static_cast<double>(total.num_weights) / 1e6, static_cast<double>(total.size_bytes) / 1e6);
  }
  for (const model::TensorEntry& tensor : files.tensors()) {
    fmt::print("{:<40} {:<7} [{}]\n", tensor.name, tensor::dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
  }
  return kExitDone;
}

Result<int> run_inspect_graph(const cli::Invocation& invocation) {
  const OptionValues& values = invocation.values;
  TRY_ASSIGN(const ModelView view, view_model(invocation.positionals[0], values, values.text("passes")));
  if (values.has("dot")) {
    TRY(write_file(values.text("dot"), graph::dump_dot(view.graphs.body) + graph::dump_dot(view.graphs.head)));
  }
  if (values.is_on("json")) {
    fmt::print("{}\n", graph_json(view));
    return kExitDone;
  }
  const TokenTraffic traffic = traffic_of(view);
  fmt::print("{}\n{}\n", graph::dump_text(view.graphs.body), graph::dump_text(view.graphs.head));
  fmt::print("passes {}\nactivations {}\nops {}\nbytes read per token {} (weights {})\nbytes written per token {}\n"
             "arena bytes {} (steps of {} tokens)\n",
             view.passes.names.empty() ? "none" : fmt::format("{}", fmt::join(view.passes.names, ", ")),
             model::activations_name(view.activations), view.body.num_ops + view.head.num_ops, traffic.read,
             view.body.weight_bytes + view.head.weight_bytes, traffic.written, view.arena_bytes, view.max_tokens);
  return kExitDone;
}

Result<int> run_inspect_kv(const cli::Invocation& invocation) {
  TRY_ASSIGN(const std::string path, locate_model(invocation.positionals[0]));
  TRY_ASSIGN(const runner::RunnerOptions options, runner_options(invocation.values, path));
  TRY_ASSIGN(const std::unique_ptr<runner::ModelRunner> runner, runner::ModelRunner::open(options));
  limit_cache_beside(invocation.values, path, *runner);
  const td_kv_layout& layout = runner->kv_layout();
  const uint64_t pool_bytes = uint64_t{runner->num_blocks()} * layout.block_stride;
  const uint64_t pool_tokens = uint64_t{runner->num_blocks()} * layout.block_tokens;
  if (invocation.values.is_on("json")) {
    JsonWriter json;
    json.begin_object();
    json.key("type").string(kv_type_name(layout.kind));
    json.key("blocks").unsigned_integer(runner->num_blocks());
    json.key("block_tokens").unsigned_integer(layout.block_tokens);
    json.key("block_bytes").unsigned_integer(layout.block_stride);
    json.key("layer_bytes").unsigned_integer(layout.layer_stride);
    json.key("head_bytes").unsigned_integer(layout.head_stride);
    json.key("pool_bytes").unsigned_integer(pool_bytes);
    json.key("pool_tokens").unsigned_integer(pool_tokens);
    json.key("max_model_len").unsigned_integer(runner->max_model_len());
    json.end_object();
    fmt::print("{}\n", json.text());
    return kExitDone;
  }
  fmt::print("type {}\nblocks {} of {} tokens, {} bytes each ({} a layer, {} a head)\n"
             "pool {} tokens, {:.1f} MB\n"
             "longest sequence {} tokens\n",
             kv_type_name(layout.kind), runner->num_blocks(), layout.block_tokens, layout.block_stride,
             layout.layer_stride, layout.head_stride, pool_tokens, static_cast<double>(pool_bytes) / 1e6,
             runner->max_model_len());
  return kExitDone;
}

}  // namespace tandem::apps
