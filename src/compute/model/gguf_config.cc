#include <cmath>
#include <string>
#include <string_view>

#include "compute/model/config_checks.h"
#include "compute/model/fault_text.h"
#include "compute/model/model_config.h"
#include "compute/model/weight_file.h"
#include "compute/tensor/dequantize.h"

namespace tandem::model {
namespace {

// Reads "<architecture>.<key>". The keys are those of the GGUF specification, section "LLM".
class Keys {
 public:
  Keys(const Metadata& metadata, std::string architecture)
      : metadata_(metadata), prefix_(std::move(architecture) + ".") {}

  bool has(const char* key) const { return metadata_.has(prefix_ + key); }
  Result<uint32_t> u32_or(const char* key, uint32_t fallback) const {
    return metadata_.get_u32_or(prefix_ + key, fallback);
  }
  Result<float> f32_or(const char* key, float fallback) const { return metadata_.get_f32_or(prefix_ + key, fallback); }
  Result<std::string_view> string_or(const char* key, std::string_view fallback) const {
    return metadata_.get_string_or(prefix_ + key, fallback);
  }
  Result<bool> bool_or(const char* key, bool fallback) const { return metadata_.get_bool_or(prefix_ + key, fallback); }

  // A number that some writers repeat for each layer: the layers must agree.
  Result<uint32_t> uniform_u32_or(const char* key, uint32_t fallback) const {
    const std::string name = prefix_ + key;
    const MetadataValue* value = metadata_.find(name);
    if (value == nullptr || value->type != ValueType::kArray) return u32_or(key, fallback);
    TRY_ASSIGN(const std::vector<int32_t> layers, metadata_.get_ints(name));
    for (const int32_t layer : layers) {
      if (layer != layers[0] || layer < 0) {
        return Error{ErrorCode::kInvalidArgument, quote_name(name) + " differs between layers, which is not supported"};
      }
    }
    return layers.empty() ? fallback : static_cast<uint32_t>(layers[0]);
  }

 private:
  const Metadata& metadata_;
  const std::string prefix_;
};

// Features of related architectures that would change the result if ignored.
Status refuse_unread_features(const std::string& source, const Keys& keys) {
  for (const char* key : {"expert_count", "attention.sliding_window_pattern", "rope.scaling.yarn_log_multiplier"}) {
    if (!keys.has(key)) continue;
    const auto count = keys.u32_or(key, 0);
    if (!count || count.value() > 1) return unsupported(source, quote_name(key));
  }
  for (const char* key : {"logit_scale", "embedding_scale", "residual_scale", "attention.scale",
                          "attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv",
                          "attention.max_alibi_bias", "attention.temperature_scale"}) {
    TRY_ASSIGN(const float value, keys.f32_or(key, 0));
    if (value != 0.0f && value != 1.0f) return unsupported(source, quote_name(key));
  }
  TRY_ASSIGN(const bool is_causal, keys.bool_or("attention.causal", true));
  return is_causal ? Status(Done{}) : Status(unsupported(source, "attention that is not causal"));
}

Status read_sizes(const Keys& keys, const WeightFiles& files, ModelConfig* config) {
  TRY_ASSIGN(config->num_layers, keys.u32_or("block_count", 0));
  TRY_ASSIGN(config->hidden, keys.u32_or("embedding_length", 0));
  TRY_ASSIGN(config->num_heads, keys.uniform_u32_or("attention.head_count", 0));
  TRY_ASSIGN(config->num_kv_heads, keys.uniform_u32_or("attention.head_count_kv", config->num_heads));
  TRY_ASSIGN(config->ffn, keys.uniform_u32_or("feed_forward_length", 0));
  TRY_ASSIGN(config->max_position, keys.u32_or("context_length", 0));
  TRY_ASSIGN(config->norm_eps, keys.f32_or("attention.layer_norm_rms_epsilon", 0));
  TRY_ASSIGN(config->sliding_window, keys.u32_or("attention.sliding_window", 0));

  const uint32_t default_head_dim = config->num_heads == 0 ? 0 : config->hidden / config->num_heads;
  const bool has_rope_dims = keys.has("rope.dimension_count");
  TRY_ASSIGN(const uint32_t rope_dims, keys.u32_or("rope.dimension_count", 0));
  TRY_ASSIGN(config->head_dim, keys.u32_or("attention.key_length", has_rope_dims ? rope_dims : default_head_dim));
  TRY_ASSIGN(const uint32_t value_dim, keys.u32_or("attention.value_length", config->head_dim));
  if (value_dim != config->head_dim) return unsupported(files.path(), "a value size other than the key size");
  if (has_rope_dims && rope_dims != config->head_dim) {
    const std::string dims = std::to_string(rope_dims) + " of " + std::to_string(config->head_dim);
    return unsupported(files.path(), "rope on " + dims + " dimensions");
  }

  // Without the key the embedding says it: writers pad the token list to its rows.
  const TensorEntry* embedding = files.find("token_embd.weight");
  const uint64_t rows = embedding == nullptr ? 0 : embedding->num_rows();
  TRY_ASSIGN(config->vocab, keys.u32_or("vocab_size", rows > UINT32_MAX ? 0 : static_cast<uint32_t>(rows)));
  return Done{};
}

Status read_yarn(const Keys& keys, RopeConfig* rope) {
  TRY_ASSIGN(rope->original_max_position, keys.u32_or("rope.scaling.original_context_length", 0));
  TRY_ASSIGN(const float own_factor, keys.f32_or("rope.scaling.attn_factor", 1.0f));
  TRY_ASSIGN(const float yarn_factor, keys.f32_or("rope.scaling.yarn_attn_factor", 1.0f));
  rope->attention_factor = yarn_attention_factor(rope->factor) * double{own_factor} * double{yarn_factor};
  TRY_ASSIGN(const float fast, keys.f32_or("rope.scaling.yarn_beta_fast", 32.0f));
  TRY_ASSIGN(const float slow, keys.f32_or("rope.scaling.yarn_beta_slow", 1.0f));
  rope->beta_fast = double{fast};
  rope->beta_slow = double{slow};
  return Done{};
}

Status read_rope(const Keys& keys, const WeightFiles& files, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.is_interleaved = config->architecture == "llama";
  TRY_ASSIGN(const float base, keys.f32_or("rope.freq_base", 10000.0f));
  rope.base = double{base};
  // A factor without a type is the older way to say linear.
  TRY_ASSIGN(const float old_factor, keys.f32_or("rope.scale_linear", 1.0f));
  TRY_ASSIGN(const float factor, keys.f32_or("rope.scaling.factor", old_factor));
  const bool has_factor = factor != 0.0f && factor != 1.0f;
  TRY_ASSIGN(const std::string_view type, keys.string_or("rope.scaling.type", has_factor ? "linear" : "none"));
  if (type == "linear" && has_factor) {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = double{factor};
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.factor = double{factor};
    TRY(read_yarn(keys, &rope));
  } else if (type != "none" && type != "linear") {
    return unsupported(files.path(), "rope scaling type " + quote_name(type));
  }

  const TensorEntry* factors = files.find("rope_freqs.weight");
  if (factors == nullptr) return Done{};
  if (factors->dtype != tensor::DType::kF32 || factors->num_elements() > 1u << 12) {
    return tensor_fault(factors->file, factors->name, "is no short F32 vector");
  }
  rope.freq_factors.resize(factors->num_elements());
  tensor::dequantize_row(factors->dtype, factors->bytes.data(), factors->num_elements(), rope.freq_factors.data());
  return Done{};
}

Status read_tokens(const Metadata& metadata, ModelConfig* config) {
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (!metadata.has(key)) continue;
    TRY_ASSIGN(const uint32_t id, metadata.get_u32(key));
    add_eos_id(id, config);
  }
  if (metadata.has("tokenizer.ggml.bos_token_id")) {
    TRY_ASSIGN(const uint32_t id, metadata.get_u32("tokenizer.ggml.bos_token_id"));
    config->bos_id = id > INT32_MAX ? -1 : static_cast<int32_t>(id);
  }
  return Done{};
}

}  // namespace

Result<ModelConfig> read_gguf_config(const WeightFiles& files) {
  const Metadata& metadata = files.metadata();
  ModelConfig config;
  TRY_ASSIGN(const std::string_view architecture, metadata.get_string("general.architecture"));
  config.architecture = std::string(architecture);
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    return unsupported(files.path(), "architecture " + quote_name(architecture));
  }
  const Keys keys(metadata, config.architecture);
  TRY(refuse_unread_features(files.path(), keys));
  TRY(read_sizes(keys, files, &config));
  TRY(read_rope(keys, files, &config));
  TRY(read_tokens(metadata, &config));
  config.tied_embeddings = files.find("output.weight") == nullptr;
  config.qk_norm = architecture == "qwen3";
  // Elsewhere a bias would go unread: then it counts as a tensor that the architecture does not know, and is refused.
  config.qkv_bias = architecture == "qwen2" && files.find("blk.0.attn_q.bias") != nullptr;
  TRY(check_config(files.path(), &config));
  return config;
}

}  // namespace tandem::model
