#include "apps/wiring.h"

#include <thread>

#include <fmt/format.h>

#include "apps/model_source.h"
#include "apps/model_text.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "plugins/cpu/cpu_plugin.h"

namespace tandem::apps {
namespace {

bool is_set(const OptionValues& values, std::string_view name) {
  return values.find(name) != nullptr && values.has(name);
}

uint32_t integer_or(const OptionValues& values, std::string_view name, uint32_t fallback) {
  return is_set(values, name) ? static_cast<uint32_t>(values.integer(name)) : fallback;
}

std::optional<model::Activations> activations_of(const std::string& name) {
  if (name == "f32") return model::Activations::kF32;
  if (name == "bf16") return model::Activations::kBF16;
  if (name == "int8") return model::Activations::kInt8;
  return std::nullopt;
}

runner::KvType kv_type_of(const std::string& name) {
  if (name == "bf16") return runner::KvType::kBF16;
  if (name == "f32") return runner::KvType::kF32;
  if (name == "int8") return runner::KvType::kInt8;
  return runner::KvType::kAuto;
}

td_quantization quantization_of(const std::string& name) {
  if (name == "w8") return TD_QUANTIZE_W8;
  if (name == "w4") return TD_QUANTIZE_W4;
  return TD_QUANTIZE_NONE;
}

Status use_chat_template(const std::string& path, text::TextModel& model) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::string_view source(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  auto compiled = text::ChatTemplate::compile(source);
  if (!compiled) return std::move(compiled).error().during(path);
  model.chat_template = std::move(compiled).value();
  model.tool_template.reset();
  return Done{};
}

}  // namespace

Result<runner::RunnerOptions> runner_options(const OptionValues& values, const std::string& model_path) {
  runner::RunnerOptions options;
  options.model_path = model_path;
  options.plugin = tandem_plugin_cpu;
  options.num_threads = integer_or(values, "threads", 0);
  if (values.text("isa") != "auto") options.isa = values.text("isa");
  options.activations = activations_of(values.text("activations"));
  options.kv_type = kv_type_of(values.text("kv-cache-dtype"));
  options.quantization = quantization_of(values.text("quantization"));
  options.block_tokens = integer_or(values, "block-size", 16);
  if (options.block_tokens % 16 != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--block-size {} is not a multiple of 16", options.block_tokens)};
  }
  options.num_kv_blocks = integer_or(values, "kv-blocks", 0);
  if (is_set(values, "kv-memory")) {
    options.kv_memory_bytes = static_cast<uint64_t>(values.integer("kv-memory"));
    if (options.num_kv_blocks != 0) {
      return Error{ErrorCode::kInvalidArgument, "--kv-blocks and --kv-memory say the same; give one of them"};
    }
  }
  options.max_model_len = integer_or(values, "max-model-len", 0);
  options.max_sequences = integer_or(values, "max-num-seqs", options.max_sequences);
  options.max_batched_tokens = integer_or(values, "max-num-batched-tokens", options.max_batched_tokens);
  // Every running sequence gets its row in a step.
  options.max_batched_tokens = std::max(options.max_batched_tokens, options.max_sequences);
  if (values.is_on("pack-cache")) options.pack_cache_directory = cache_folder() + "/packed";
  if (is_set(values, "passes")) options.passes = values.text("passes");
  return options;
}

Result<LoadedModel> load_model(const std::string& model, const OptionValues& values) {
  TRY_ASSIGN(const std::string path, locate_model(model));
  TRY_ASSIGN(const runner::RunnerOptions options, runner_options(values, path));
  TRY_ASSIGN(const model::WeightFiles files, model::WeightFiles::open(path));
  for (const std::string& warning : files.warnings()) log_warning("apps", warning);

  std::optional<Result<text::TextModel>> text;
  std::thread text_thread([&] { text.emplace(load_text_model(files)); });
  auto runner = runner::ModelRunner::open(options, files);
  text_thread.join();
  if (!runner) return std::move(runner).error();
  if (!*text) return std::move(*text).error();
  LoadedModel loaded{std::move(runner).value(), std::make_unique<text::TextModel>(std::move(*text).value())};
  if (is_set(values, "chat-template")) TRY(use_chat_template(values.text("chat-template"), *loaded.text));
  limit_cache(values.integer("cache-limit"), path);
  return loaded;
}

engine::EngineConfig engine_config(const OptionValues& values, const runner::ModelRunner& runner,
                                   const std::string& model_name) {
  engine::EngineConfig config;
  sched::SchedulerConfig& sched = config.sched;
  sched.block_size = runner.block_tokens();
  sched.num_blocks = runner.num_blocks();
  sched.enable_prefix_caching = values.is_on("enable-prefix-caching");
  sched.max_num_seqs = integer_or(values, "max-num-seqs", sched.max_num_seqs);
  sched.max_num_batched_tokens = integer_or(values, "max-num-batched-tokens", sched.max_num_batched_tokens);
  sched.max_model_len = runner.max_model_len();
  if (is_set(values, "batch-window-ms")) sched.window_ms = values.number("batch-window-ms");
  if (is_set(values, "tpot-target-ms")) sched.tpot_target_ms = values.number("tpot-target-ms");
  sched.max_queue_length = integer_or(values, "max-queue-length", sched.max_queue_length);
  sched.max_queued_per_tenant = integer_or(values, "max-queue-per-key", sched.max_queued_per_tenant);
  sched.eos_ids = runner.config().eos_ids;
  config.model_name = model_name;
  config.vocab_size = runner.vocab_size();
  config.max_logprobs = integer_or(values, "max-logprobs", config.max_logprobs);
  return config;
}

}  // namespace tandem::apps
