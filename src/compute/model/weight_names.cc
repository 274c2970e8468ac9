#include "compute/model/weight_names.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "compute/model/fault_text.h"

namespace tandem::model {
namespace {

using Shape = std::vector<uint64_t>;

struct LayerPart {
  const char* gguf;
  const char* hf;
  const TensorEntry* LayerTensors::*member;
  Shape shape;
};

std::vector<LayerPart> layer_parts(const ModelConfig& c) {
  const uint64_t q = uint64_t{c.num_heads} * c.head_dim;
  const uint64_t kv = uint64_t{c.num_kv_heads} * c.head_dim;
  std::vector<LayerPart> parts = {
      {"attn_norm.weight", "input_layernorm.weight", &LayerTensors::attn_norm, {c.hidden}},
      {"attn_q.weight", "self_attn.q_proj.weight", &LayerTensors::q, {q, c.hidden}},
      {"attn_k.weight", "self_attn.k_proj.weight", &LayerTensors::k, {kv, c.hidden}},
      {"attn_v.weight", "self_attn.v_proj.weight", &LayerTensors::v, {kv, c.hidden}},
      {"attn_output.weight", "self_attn.o_proj.weight", &LayerTensors::o, {c.hidden, q}},
      {"ffn_norm.weight", "post_attention_layernorm.weight", &LayerTensors::ffn_norm, {c.hidden}},
      {"ffn_gate.weight", "mlp.gate_proj.weight", &LayerTensors::gate, {c.ffn, c.hidden}},
      {"ffn_up.weight", "mlp.up_proj.weight", &LayerTensors::up, {c.ffn, c.hidden}},
      {"ffn_down.weight", "mlp.down_proj.weight", &LayerTensors::down, {c.hidden, c.ffn}},
  };
  if (c.qkv_bias) {
    parts.push_back({"attn_q.bias", "self_attn.q_proj.bias", &LayerTensors::q_bias, {q}});
    parts.push_back({"attn_k.bias", "self_attn.k_proj.bias", &LayerTensors::k_bias, {kv}});
    parts.push_back({"attn_v.bias", "self_attn.v_proj.bias", &LayerTensors::v_bias, {kv}});
  }
  if (c.qk_norm) {
    parts.push_back({"attn_q_norm.weight", "self_attn.q_norm.weight", &LayerTensors::q_norm, {c.head_dim}});
    parts.push_back({"attn_k_norm.weight", "self_attn.k_norm.weight", &LayerTensors::k_norm, {c.head_dim}});
  }
  return parts;
}

// Looks tensors up, remembers which were used and which were missing.
class Collector {
 public:
  explicit Collector(const WeightFiles& files) : files_(files) {}

  // Null and remembered when absent.
  Result<const TensorEntry*> take(const std::string& name, const Shape& expected) {
    const TensorEntry* entry = files_.find(name);
    if (entry == nullptr) {
      missing_.push_back(name);
      return entry;
    }
    used_.insert(entry);
    if (entry->shape != expected) {
      return tensor_fault(entry->file, name, "shape " + shape_text(entry->shape) + ", but the configuration needs " +
                                                 shape_text(expected));
    }
    return entry;
  }

  const std::vector<std::string>& missing() const { return missing_; }

  // In file order.
  std::vector<const TensorEntry*> unused() const {
    std::vector<const TensorEntry*> rest;
    for (const TensorEntry& entry : files_.tensors()) {
      if (!used_.contains(&entry)) rest.push_back(&entry);
    }
    return rest;
  }

 private:
  const WeightFiles& files_;
  std::set<const TensorEntry*> used_;
  std::vector<std::string> missing_;
};

// A tensor that computes something: leaving it out would change the model without a word. Others (vision towers,
// precomputed rope tables that the configuration already holds) can be left alone.
bool changes_the_model(std::string_view name, bool is_gguf) {
  if (name == "rope_freqs.weight" || name.ends_with("rotary_emb.inv_freq")) return false;
  if (!is_gguf) return name.starts_with("model.layers.") || name.starts_with("lm_head.") || name == "model.norm.bias";
  return name.starts_with("blk.") || name.starts_with("output.") || name.starts_with("output_norm.") ||
         name.starts_with("token_embd") || name.starts_with("rope_factors");
}

Status check_unused(const WeightFiles& files, const Collector& collector, ModelTensors* out) {
  std::vector<std::string> harmful;
  for (const TensorEntry* entry : collector.unused()) {
    (changes_the_model(entry->name, files.is_gguf()) ? harmful : out->unused).push_back(entry->name);
  }
  if (harmful.empty()) return Done{};
  return Error{ErrorCode::kInvalidArgument,
               files.path() + ": tensors that this architecture does not use: " + list_names(harmful)};
}

// Which output matrix to use; see collect().
Result<const TensorEntry*> choose_lm_head(const WeightFiles& files, const ModelConfig& config,
                                          const TensorEntry* embedding, Collector* collector) {
  const char* name = files.is_gguf() ? "output.weight" : "lm_head.weight";
  const TensorEntry* head = files.find(name);
  const bool may_be_absent = config.tied_embeddings || files.is_gguf();
  if (head == nullptr && may_be_absent) return head;
  TRY_ASSIGN(head, collector->take(name, {config.vocab, config.hidden}));
  if (head == nullptr || embedding == nullptr || !config.tied_embeddings) return head;
  const bool is_same = head->dtype == embedding->dtype && std::ranges::equal(head->bytes, embedding->bytes);
  return is_same ? nullptr : head;
}

}  // namespace

Result<ModelTensors> collect(const WeightFiles& files, const ModelConfig& config) {
  const bool is_gguf = files.is_gguf();
  Collector collector(files);
  ModelTensors out;
  const char* embedding_name = is_gguf ? "token_embd.weight" : "model.embed_tokens.weight";
  TRY_ASSIGN(out.embedding, collector.take(embedding_name, {config.vocab, config.hidden}));
  const std::vector<LayerPart> parts = layer_parts(config);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = (is_gguf ? "blk." : "model.layers.") + std::to_string(layer) + ".";
    LayerTensors tensors;
    for (const LayerPart& part : parts) {
      TRY_ASSIGN(tensors.*part.member, collector.take(prefix + (is_gguf ? part.gguf : part.hf), part.shape));
    }
    out.layers.push_back(tensors);
  }
  TRY_ASSIGN(out.final_norm, collector.take(is_gguf ? "output_norm.weight" : "model.norm.weight", {config.hidden}));
  TRY_ASSIGN(out.lm_head, choose_lm_head(files, config, out.embedding, &collector));
  if (!collector.missing().empty()) {
    const bool lacks_head = !is_gguf && collector.missing().back() == "lm_head.weight";
    const char* hint = lacks_head ? " (\"tie_word_embeddings\" is not true, so lm_head.weight has to be there)" : "";
    return Error{ErrorCode::kCorrupt, files.path() + ": missing tensors: " + list_names(collector.missing()) + hint};
  }
  TRY(check_unused(files, collector, &out));
  return out;
}

}  // namespace tandem::model
