#include <cmath>
#include <string>
#include <string_view>

#include "base/json.h"
#include "compute/model/config_checks.h"
#include "compute/model/fault_text.h"
#include "compute/model/model_config.h"

namespace tandem::model {
namespace {

// Reads members of a JSON object; null counts as absent, as it does for transformers.
class Members {
 public:
  Members(const JsonValue& object, const std::string& source) : object_(object), source_(source) {}

  const JsonValue* find(std::string_view key) const {
    const JsonValue* value = object_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  Result<uint32_t> u32_or(std::string_view key, uint32_t fallback) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return fallback;
    uint64_t number = 0;
    if (!value->as_uint64(number) || number > UINT32_MAX) return wrong(key, "an unsigned 32-bit integer");
    return static_cast<uint32_t>(number);
  }
  Result<double> number_or(std::string_view key, double fallback) const {
    const JsonValue* value = find(key);
    double number = fallback;
    if (value != nullptr && !value->as_double(number)) return wrong(key, "a number");
    return number;
  }
  Result<bool> bool_or(std::string_view key, bool fallback) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return fallback;
    const bool* flag = value->if_bool();
    if (flag == nullptr) return wrong(key, "a boolean");
    return *flag;
  }
  Result<std::string> string_or(std::string_view key, const std::string& fallback) const {
    const JsonValue* value = find(key);
    if (value == nullptr) return fallback;
    const std::string* text = value->if_string();
    if (text == nullptr) return wrong(key, "a string");
    return *text;
  }
  // One id or a list of them.
  Result<std::vector<int64_t>> ids(std::string_view key) const {
    std::vector<int64_t> ids;
    const JsonValue* value = find(key);
    if (value == nullptr) return ids;
    const JsonValue::Array* items = value->if_array();
    const size_t count = items == nullptr ? 1 : items->size();
    for (size_t i = 0; i < count; ++i) {
      const JsonValue& item = items == nullptr ? *value : (*items)[i];
      int64_t id = 0;
      if (!item.as_int64(id)) return wrong(key, "a token id or a list of token ids");
      ids.push_back(id);
    }
    return ids;
  }

 private:
  Error wrong(std::string_view key, const char* wanted) const {
    return file_fault(source_, quote_name(key) + " is not " + wanted);
  }

  const JsonValue& object_;
  const std::string& source_;
};

Status refuse_unread_features(const std::string& source, const Members& members) {
  if (members.has("quantization_config")) return unsupported(source, "\"quantization_config\"");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    TRY_ASSIGN(const bool is_set, members.bool_or(key, false));
    if (is_set) return unsupported(source, quote_name(key) + " true");
  }
  TRY_ASSIGN(const std::string activation, members.string_or("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return unsupported(source, "\"hidden_act\" " + quote_name(activation));
  }
  if (const JsonValue* value = members.find("architectures")) {
    const JsonValue::Array* names = value->if_array();
    const std::string* name = names == nullptr || names->empty() ? nullptr : (*names)[0].if_string();
    if (name != nullptr && !name->ends_with("ForCausalLM")) {
      return unsupported(source, "architecture " + quote_name(*name));
    }
  }
  return Done{};
}

Status read_sizes(const std::string& source, const Members& members, ModelConfig* config) {
  TRY_ASSIGN(config->num_layers, members.u32_or("num_hidden_layers", 0));
  TRY_ASSIGN(config->hidden, members.u32_or("hidden_size", 0));
  TRY_ASSIGN(config->num_heads, members.u32_or("num_attention_heads", 0));
  TRY_ASSIGN(config->num_kv_heads, members.u32_or("num_key_value_heads", config->num_heads));
  TRY_ASSIGN(config->ffn, members.u32_or("intermediate_size", 0));
  TRY_ASSIGN(config->vocab, members.u32_or("vocab_size", 0));
  TRY_ASSIGN(config->max_position, members.u32_or("max_position_embeddings", 0));
  if (config->num_heads == 0) return file_fault(source, "\"num_attention_heads\" is missing or 0");
  // Qwen3's own default; the other architectures derive it.
  const uint32_t default_head_dim = config->architecture == "qwen3" ? 128 : config->hidden / config->num_heads;
  TRY_ASSIGN(config->head_dim, members.u32_or("head_dim", default_head_dim));
  TRY_ASSIGN(const double eps, members.number_or("rms_norm_eps", 1e-6));
  config->norm_eps = static_cast<float>(eps);
  TRY_ASSIGN(config->tied_embeddings, members.bool_or("tie_word_embeddings", false));
  return Done{};
}

enum class WindowUse { kNone, kAll, kSome };

// From "layer_types" where it is given, else from Qwen2's older "max_window_layers".
Result<WindowUse> window_use(const std::string& source, const Members& members, const ModelConfig& config) {
  if (const JsonValue* value = members.find("layer_types")) {
    const JsonValue::Array* types = value->if_array();
    if (types == nullptr) return file_fault(source, "\"layer_types\" is not a list");
    size_t sliding = 0;
    for (const JsonValue& type : *types) {
      const std::string* name = type.if_string();
      const bool is_sliding = name != nullptr && *name == "sliding_attention";
      if (!is_sliding && (name == nullptr || *name != "full_attention")) {
        return unsupported(source, "a layer type other than full_attention and sliding_attention");
      }
      sliding += is_sliding;
    }
    if (sliding == 0) return WindowUse::kNone;
    return sliding == types->size() ? WindowUse::kAll : WindowUse::kSome;
  }
  if (config.architecture == "mistral") return WindowUse::kAll;
  TRY_ASSIGN(const uint32_t first, members.u32_or("max_window_layers", 28));
  if (first >= config.num_layers) return WindowUse::kNone;
  return first == 0 ? WindowUse::kAll : WindowUse::kSome;
}

Status read_window(const std::string& source, const Members& members, ModelConfig* config) {
  if (config->architecture == "llama") return Done{};  // this architecture has no window, whatever the file says
  TRY_ASSIGN(const uint32_t window, members.u32_or("sliding_window", 0));
  TRY_ASSIGN(const bool is_used, members.bool_or("use_sliding_window", config->architecture == "mistral"));
  if (window == 0 || !is_used) return Done{};
  TRY_ASSIGN(const WindowUse use, window_use(source, members, *config));
  if (use == WindowUse::kSome) return unsupported(source, "a sliding window in some layers only");
  if (use == WindowUse::kAll) config->sliding_window = window;
  return Done{};
}

// Formulas: transformers, modeling_rope_utils.py, _compute_yarn_parameters.
Status read_yarn(const Members& scaling, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  TRY_ASSIGN(rope.original_max_position, scaling.u32_or("original_max_position_embeddings", config->max_position));
  if (rope.factor == 0 && rope.original_max_position != 0) {
    rope.factor = static_cast<double>(config->max_position) / rope.original_max_position;
  }
  TRY_ASSIGN(const double mscale, scaling.number_or("mscale", 0));
  TRY_ASSIGN(const double mscale_all_dim, scaling.number_or("mscale_all_dim", 0));
  double attention_factor = yarn_attention_factor(rope.factor);
  if (mscale != 0 && mscale_all_dim != 0) {
    attention_factor = yarn_attention_factor(rope.factor, mscale) / yarn_attention_factor(rope.factor, mscale_all_dim);
  }
  TRY_ASSIGN(rope.attention_factor, scaling.number_or("attention_factor", attention_factor));
  TRY_ASSIGN(rope.beta_fast, scaling.number_or("beta_fast", 32.0));
  TRY_ASSIGN(rope.beta_slow, scaling.number_or("beta_slow", 1.0));
  TRY_ASSIGN(rope.truncate, scaling.bool_or("truncate", true));
  return Done{};
}

Status read_scaling(const std::string& source, const Members& scaling, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  TRY_ASSIGN(const std::string older_type, scaling.string_or("type", "default"));
  TRY_ASSIGN(const std::string type, scaling.string_or("rope_type", older_type));
  if (type == "default") return Done{};
  if (type != "linear" && type != "llama3" && type != "yarn") {
    return unsupported(source, "rope type " + quote_name(type));
  }
  const bool can_derive_factor = type == "yarn" && scaling.has("original_max_position_embeddings");
  if (!scaling.has("factor") && !can_derive_factor) {
    return file_fault(source, "rope type " + quote_name(type) + " lacks \"factor\"");
  }
  TRY_ASSIGN(rope.factor, scaling.number_or("factor", 0));
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    return Done{};
  }
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    return read_yarn(scaling, config);
  }
  rope.scaling = RopeScaling::kLlama3;
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!scaling.has(key)) return file_fault(source, "rope type \"llama3\" lacks " + quote_name(key));
  }
  TRY_ASSIGN(rope.low_freq_factor, scaling.number_or("low_freq_factor", 0));
  TRY_ASSIGN(rope.high_freq_factor, scaling.number_or("high_freq_factor", 0));
  TRY_ASSIGN(rope.original_max_position, scaling.u32_or("original_max_position_embeddings", 0));
  return Done{};
}

// transformers 5 keeps everything in "rope_parameters"; before, the base was beside "rope_scaling".
Status read_rope(const std::string& source, const Members& members, ModelConfig* config) {
  const char* key = members.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const JsonValue nothing(JsonValue::Object{});
  const JsonValue* found = members.find(key);
  if (found != nullptr && found->if_object() == nullptr) {
    return file_fault(source, quote_name(key) + " is not an object");
  }
  const Members scaling(found == nullptr ? nothing : *found, source);
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (scaling.has(layer_type)) return unsupported(source, "rope that differs between layer types");
  }
  TRY_ASSIGN(const double outer_base, members.number_or("rope_theta", 10000.0));
  TRY_ASSIGN(config->rope.base, scaling.number_or("rope_theta", outer_base));
  TRY_ASSIGN(const double outer_partial, members.number_or("partial_rotary_factor", 1.0));
  TRY_ASSIGN(const double partial, scaling.number_or("partial_rotary_factor", outer_partial));
  if (partial != 1.0) return unsupported(source, "\"partial_rotary_factor\" other than 1");
  return read_scaling(source, scaling, config);
}

Status read_tokens(const Members& members, ModelConfig* config) {
  TRY_ASSIGN(const std::vector<int64_t> eos, members.ids("eos_token_id"));
  for (const int64_t id : eos) add_eos_id(id, config);
  TRY_ASSIGN(const std::vector<int64_t> bos, members.ids("bos_token_id"));
  if (config->bos_id < 0 && !bos.empty() && bos[0] >= 0 && bos[0] <= INT32_MAX) {
    config->bos_id = static_cast<int32_t>(bos[0]);
  }
  return Done{};
}

}  // namespace

Result<ModelConfig> parse_hf_config(const std::string& config_json, const std::string& generation_json,
                                    const std::string& source) {
  auto root = JsonValue::parse(config_json);
  if (!root) return file_fault(source, root.error().message);
  if (root->if_object() == nullptr) return file_fault(source, "is no JSON object");
  const Members members(root.value(), source);

  ModelConfig config;
  TRY_ASSIGN(config.architecture, members.string_or("model_type", ""));
  const std::string& type = config.architecture;
  if (type != "llama" && type != "mistral" && type != "qwen2" && type != "qwen3") {
    return unsupported(source, "\"model_type\" " + quote_name(type));
  }
  TRY(refuse_unread_features(source, members));
  TRY(read_sizes(source, members, &config));
  TRY(read_window(source, members, &config));
  TRY(read_rope(source, members, &config));
  TRY(read_tokens(members, &config));
  config.qkv_bias = type == "qwen2";
  config.qk_norm = type == "qwen3";
  if (!generation_json.empty()) {
    const std::string generation_source = "generation_config.json beside " + source;
    auto generation = JsonValue::parse(generation_json);
    if (!generation) return file_fault(generation_source, generation.error().message);
    TRY(read_tokens(Members(generation.value(), generation_source), &config));
  }
  TRY(check_config(source, &config));
  return config;
}

}  // namespace tandem::model
