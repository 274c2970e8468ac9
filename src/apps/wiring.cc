#include "apps/wiring.h"

#include <thread>

#include <fmt/format.h>

#include "apps/model_source.h"
#include "apps/model_text.h"
#include "apps/model_view.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cluster/supervisor/topology.h"
#include "plugins/cpu/cpu_plugin.h"
#include "serve/runner/file_hash.h"

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
  model.template_error.clear();
  model.tool_call_format = text::detect_tool_call_format(source);
  return Done{};
}

Result<openai::SamplingDefaults> sampling_defaults(const model::WeightFiles& files) {
  if (files.is_gguf()) return openai::SamplingDefaults{};
  const std::string path = files.directory() + "/generation_config.json";
  const auto file = MappedFile::open(path);
  if (!file) return openai::SamplingDefaults{};
  const auto bytes = file.value().bytes();
  auto defaults =
      openai::parse_generation_config(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!defaults) return std::move(defaults).error().during(path + " (see --generation-config)");
  log_info("apps", "sampling where requests leave it open",
           {{"temperature", fmt::format("{}", defaults->temperature)},
            {"top_p", fmt::format("{}", defaults->top_p)},
            {"top_k", fmt::format("{}", defaults->top_k)},
            {"min_p", fmt::format("{}", defaults->min_p)},
            {"repetition_penalty", fmt::format("{}", defaults->repetition_penalty)}});
  return defaults;
}

// --chat-template and --generation-config.
Result<openai::SamplingDefaults> obey_text_options(const OptionValues& values, const model::WeightFiles& files,
                                                   text::TextModel& text) {
  if (is_set(values, "chat-template")) TRY(use_chat_template(values.text("chat-template"), text));
  const bool is_auto = is_set(values, "generation-config") && values.text("generation-config") == "auto";
  return is_auto ? sampling_defaults(files) : Result<openai::SamplingDefaults>(openai::SamplingDefaults{});
}

// A prompt that needs one of these tokens is refused when it comes; who runs the server should know before.
void warn_of_lost_tokens(const std::string& path, const model::ModelConfig& config, const text::TextModel& text) {
  if (text.tokenizer.vocab_size() <= config.vocab) return;
  log_warning("apps", fmt::format("{}: the tokenizer has {} tokens, the model {}: the last of them cannot be used",
                                  path, text.tokenizer.vocab_size(), config.vocab));
}

void log_loaded(const std::string& path, const runner::ModelRunner& runner) {
  log_info("apps", "model loaded",
           {{"model", path},
            {"device", runner.device_name()},
            {"activations", model::activations_name(runner.activations())},
            {"weight_bytes", std::to_string(runner.weight_bytes())},
            {"packed", runner.packed_file().empty()       ? "in memory"
                       : runner.weights_were_cached() ? "from the cache"
                                                      : "into the cache"},
            {"kv_blocks", std::to_string(runner.num_blocks())},
            {"max_model_len", std::to_string(runner.max_model_len())},
            {"fingerprint", runner.fingerprint()}});
}

// Blocks that prompts leave to sequences that grow: one each, as long as the longest prompt still fits beside them.
uint32_t num_private_blocks(const sched::SchedulerConfig& config) {
  const uint32_t for_longest = (config.max_model_len + config.block_size - 1) / config.block_size;
  const uint32_t spare = config.num_blocks - std::min(config.num_blocks, for_longest);
  return std::min(config.max_num_seqs, spare / 4);
}

}  // namespace

Status check_options(const OptionValues& values) {
  // An empty name of one of these must not turn off what it protects.
  for (const char* name : {"api-key-file", "tls-cert", "tls-key", "cluster-cert", "cluster-key", "cluster-ca",
                           "admin-key-file", "gateway-ca"}) {
    if (is_set(values, name) && values.text(name).empty()) {
      return Error{ErrorCode::kInvalidArgument, fmt::format("--{} names no file", name)};
    }
  }
  if (is_set(values, "topology")) TRY(supervisor::parse_topology(values.text("topology")));
  if (is_set(values, "block-size") && values.integer("block-size") % 16 != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--block-size {} is not a multiple of 16", values.integer("block-size"))};
  }
  if (is_set(values, "kv-memory") && is_set(values, "kv-blocks") &&
      values.source("kv-memory") == values.source("kv-blocks")) {
    return Error{ErrorCode::kInvalidArgument, "--kv-blocks and --kv-memory say the same; give one of them"};
  }
  return Done{};
}

Result<runner::RunnerOptions> runner_options(const OptionValues& values, const std::string& model_path) {
  runner::RunnerOptions options;
  options.model_path = model_path;
  options.plugin = tandem_plugin_cpu;
  options.num_threads = integer_or(values, "threads", 0);
  if (values.text("isa") != "auto") options.isa = values.text("isa");
  options.activations = activations_of(values.text("activations"));
  options.kv_type = kv_type_of(values.text("kv-cache-dtype"));
  options.quantization = quantization_of(values.text("quantization"));
  TRY(check_options(values));
  options.block_tokens = integer_or(values, "block-size", 16);
  // Both say the pool's size: of a flag and a line in a file the flag counts.
  const bool has_memory = is_set(values, "kv-memory");
  const bool has_blocks = is_set(values, "kv-blocks");
  const bool memory_wins = has_memory && (!has_blocks || values.source("kv-memory") > values.source("kv-blocks"));
  if (memory_wins) options.kv_memory_bytes = static_cast<uint64_t>(values.integer("kv-memory"));
  else options.num_kv_blocks = integer_or(values, "kv-blocks", 0);
  options.max_model_len = integer_or(values, "max-model-len", 0);
  options.max_sequences = integer_or(values, "max-num-seqs", options.max_sequences);
  options.max_batched_tokens = integer_or(values, "max-num-batched-tokens", options.max_batched_tokens);
  // Every running sequence gets its row in a step.
  options.max_batched_tokens = std::max(options.max_batched_tokens, options.max_sequences);
  if (values.is_on("pack-cache")) options.pack_cache_directory = cache_folder() + "/packed";
  options.nests_steps = values.find("data-address") != nullptr;  // a node of a cluster
  if (is_set(values, "passes")) options.passes = values.text("passes");
  return options;
}

Result<LoadedModel> load_model(const std::string& model, const OptionValues& values, bool hashes_weights) {
  TRY_ASSIGN(const std::string path, locate_model(model));
  TRY_ASSIGN(const runner::RunnerOptions options, runner_options(values, path));
  TRY_ASSIGN(const model::WeightFiles files, model::WeightFiles::open(path));
  for (const std::string& warning : files.warnings()) log_warning("apps", warning);

  std::optional<Result<text::TextModel>> text;
  std::jthread text_thread([&] { text.emplace(load_text_model(files)); });
  auto runner = runner::ModelRunner::open(options, files);
  text_thread.join();
  if (!runner) return std::move(runner).error();
  if (!*text) return std::move(*text).error();
  LoadedModel loaded{std::move(runner).value(), std::make_unique<text::TextModel>(std::move(*text).value()), {}, {}};
  warn_of_lost_tokens(path, loaded.runner->config(), *loaded.text);
  TRY_ASSIGN(loaded.sampling, obey_text_options(values, files, *loaded.text));
  if (hashes_weights) loaded.weights_hash = runner::cached_file_hash(files, cache_folder() + "/packed");
  limit_cache_beside(values, path, *loaded.runner);
  log_loaded(path, *loaded.runner);
  return loaded;
}

Result<LoadedText> load_text(const std::string& model, const OptionValues& values) {
  TRY_ASSIGN(const std::string path, locate_model(model));
  TRY_ASSIGN(const model::WeightFiles files, model::WeightFiles::open(path));
  for (const std::string& warning : files.warnings()) log_warning("apps", warning);
  LoadedText loaded;
  TRY_ASSIGN(loaded.config, model::read_config(files));
  TRY_ASSIGN(text::TextModel text, load_text_model(files));
  loaded.text = std::make_unique<text::TextModel>(std::move(text));
  TRY_ASSIGN(loaded.sampling, obey_text_options(values, files, *loaded.text));
  return loaded;
}

text::GrammarConfig grammar_config(const model::ModelConfig& config, const text::TextModel& text) {
  text::GrammarConfig grammars;
  grammars.logits_size = config.vocab;
  grammars.stops = end_ids(config, text);
  return grammars;
}

void limit_cache_beside(const OptionValues& values, const std::string& model_path, const runner::ModelRunner& runner) {
  std::vector<std::string> kept = {model_path};
  if (!runner.packed_file().empty()) kept.push_back(runner.packed_file());
  limit_cache(values.integer("cache-limit"), kept);
}

engine::EngineConfig engine_config(const OptionValues& values, const LoadedModel& model,
                                   const std::string& model_name) {
  const runner::ModelRunner& runner = *model.runner;
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
  sched.max_queued_tokens = integer_or(values, "max-queue-tokens", 0);
  if (is_set(values, "max-queue-time")) sched.max_queue_s = values.number("max-queue-time");
  sched.num_private_blocks = num_private_blocks(sched);
  sched.eos_ids = end_ids(runner.config(), *model.text);
  config.model_name = model_name;
  config.vocab_size = runner.vocab_size();
  config.max_logprobs = integer_or(values, "max-logprobs", config.max_logprobs);
  return config;
}

}  // namespace tandem::apps
