#include "compute/model/build_graph.h"

#include "compute/model/decoder_builder.h"

namespace tandem::model {
namespace {

using graph::ValueId;

// Llama 2 and 3, SmolLM2, Mistral: pre-norm, rotary attention, gated SiLU. The window and the rope scaling come from
// the config.
void build_llama_layer(DecoderBuilder& builder, uint32_t layer, const LayerTensors& tensors) {
  builder.attention_block(layer, tensors, {});
  builder.gated_ffn_block(layer, tensors);
}

// Qwen2, Qwen2.5: biases on q, k, v.
void build_qwen2_layer(DecoderBuilder& builder, uint32_t layer, const LayerTensors& tensors) {
  builder.attention_block(layer, tensors, {.has_qkv_bias = true});
  builder.gated_ffn_block(layer, tensors);
}

// Qwen3: a norm on each head of q and k, before rope.
void build_qwen3_layer(DecoderBuilder& builder, uint32_t layer, const LayerTensors& tensors) {
  builder.attention_block(layer, tensors, {.has_qk_norm = true});
  builder.gated_ffn_block(layer, tensors);
}

struct Architecture {
  const char* name;
  void (*build_layer)(DecoderBuilder&, uint32_t, const LayerTensors&);
};
constexpr Architecture kArchitectures[] = {
    {"llama", build_llama_layer},
    {"mistral", build_llama_layer},
    {"qwen2", build_qwen2_layer},
    {"qwen3", build_qwen3_layer},
};

}  // namespace

const char* activations_name(Activations activations) {
  switch (activations) {
    case Activations::kF32: return "f32";
    case Activations::kBF16: return "bf16";
    case Activations::kInt8: return "int8";
  }
  return "?";
}

Activations default_activations(const ModelTensors& tensors, td_quantization quantization) {
  if (quantization != TD_QUANTIZE_NONE) return Activations::kInt8;
  // The bulk of the weights decides; a model mixes types only among its small or its sensitive tensors.
  const tensor::DType dtype = tensors.layers.front().gate->dtype;
  if (tensor::is_quantised(dtype)) return Activations::kInt8;
  return dtype == tensor::DType::kBF16 ? Activations::kBF16 : Activations::kF32;
}

uint32_t num_segments(uint32_t k, uint32_t num_heads) {
  if (k % 32 != 0) return 1;
  uint32_t segments = 16;
  while (segments > 1 && ((k / 32) % segments != 0 || (num_heads > 0 && num_heads % segments != 0))) segments /= 2;
  return segments;
}

Result<ModelGraphs> build_graphs(const ModelConfig& config, const ModelTensors& tensors, const BuildOptions& options) {
  const Architecture* architecture = nullptr;
  std::string known;
  for (const Architecture& candidate : kArchitectures) {
    if (config.architecture == candidate.name) architecture = &candidate;
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
  }
  if (architecture == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "no graph builder for architecture '" + config.architecture + "'; there are " + known};
  }
  ModelGraphs graphs;
  DecoderBuilder body(graphs.body, config, options);
  body.embed(*tensors.embedding);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    architecture->build_layer(body, layer, tensors.layers[layer]);
  }
  body.finish_hidden();
  DecoderBuilder head(graphs.head, config, options);
  head.logits(*tensors.final_norm, tensors.lm_head != nullptr ? *tensors.lm_head : *tensors.embedding);
  DecoderBuilder pool(graphs.pool, config, options);
  pool.normed_rows(*tensors.final_norm);
  return graphs;
}

}  // namespace tandem::model
