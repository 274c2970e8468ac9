#include "apps/effective_settings.h"

#include <algorithm>

#include "apps/version.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/sched/admission_policy.h"

namespace tandem::apps {
namespace {

std::string_view source_name(OptionSource source) {
  switch (source) {
    case OptionSource::kDefault: return "default";
    case OptionSource::kFile: return "file";
    case OptionSource::kEnvironment: return "environment";
    case OptionSource::kFlag: return "flag";
  }
  return "default";
}

void write_value(JsonWriter& json, const OptionSpec& spec, const OptionValues& values) {
  const bool may_be_secret = spec.name == "api-key" || spec.name == "otlp-endpoint";
  if (!values.has(spec.name) || may_be_secret) {
    json.null();
    return;
  }
  switch (spec.type) {
    case OptionType::kText:
    case OptionType::kChoice: json.string(values.text(spec.name)); break;
    case OptionType::kInteger:
    case OptionType::kBytes: json.integer(values.integer(spec.name)); break;
    case OptionType::kNumber: json.number(values.number(spec.name)); break;
    case OptionType::kSwitch: json.boolean(values.is_on(spec.name)); break;
    case OptionType::kTextList:
      json.begin_array();
      for (const std::string& text : values.texts(spec.name)) json.string(text);
      json.end_array();
      break;
    case OptionType::kIntegerList:
      json.begin_array();
      for (const int64_t number : values.integers(spec.name)) json.integer(number);
      json.end_array();
      break;
  }
}

}  // namespace

void EffectiveLimits::log() const {
  log_info("apps", "limits",
           {{"tokens_a_request", std::to_string(max_model_len)},
            {"kv_pool_tokens", kv_blocks > 0 ? std::to_string(kv_tokens()) : "of each node"},
            {"requests_at_once", max_num_seqs > 0 ? std::to_string(max_num_seqs) : "of each node"},
            {"requests_waiting", max_queue_length > 0 ? std::to_string(max_queue_length) : "any number"}});
}

EffectiveLimits effective_limits(const sched::SchedulerConfig& config) {
  EffectiveLimits limits;
  limits.max_model_len = sched::AdmissionPolicy(config).max_sequence_tokens();
  limits.kv_blocks = config.num_blocks;
  limits.block_size = config.block_size;
  limits.max_num_seqs = config.max_num_seqs;
  limits.max_num_batched_tokens = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  limits.max_queue_length = config.max_queue_length;
  return limits;
}

std::string settings_json(const OptionValues& values, const EffectiveLimits& limits) {
  JsonWriter json;
  json.begin_object().key("version").string(program_version()).key("limits").begin_object();
  const auto limit = [&json](std::string_view name, uint64_t value) { json.key(name).unsigned_integer(value); };
  limit("max_model_len", limits.max_model_len);
  limit("kv_tokens", limits.kv_tokens());
  limit("kv_blocks", limits.kv_blocks);
  limit("block_size", limits.block_size);
  limit("max_num_seqs", limits.max_num_seqs);
  limit("max_num_batched_tokens", limits.max_num_batched_tokens);
  limit("max_queue_length", limits.max_queue_length);
  json.end_object().key("options").begin_object();
  for (const OptionSpec& spec : values.specs()) {
    json.key(spec.name).begin_object().key("value");
    write_value(json, spec, values);
    json.key("source").string(source_name(values.source(spec.name))).end_object();
  }
  return json.end_object().end_object().take();
}

}  // namespace tandem::apps
