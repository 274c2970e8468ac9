#pragma once
// Which tensor of the files plays which part, in GGUF's and in Hugging Face's naming. Borrows from WeightFiles.

#include <string>
#include <vector>

#include "base/result.h"
#include "compute/model/model_config.h"
#include "compute/model/tensor_entry.h"
#include "compute/model/weight_file.h"

namespace tandem::model {

// Matrices are [out, in]. Null: the architecture has none.
struct LayerTensors {
  const TensorEntry* attn_norm = nullptr;  // [hidden]
  const TensorEntry* q = nullptr;          // [heads * head_dim, hidden]
  const TensorEntry* k = nullptr;          // [kv_heads * head_dim, hidden]
  const TensorEntry* v = nullptr;
  const TensorEntry* q_bias = nullptr;     // with qkv_bias
  const TensorEntry* k_bias = nullptr;
  const TensorEntry* v_bias = nullptr;
  const TensorEntry* q_norm = nullptr;     // [head_dim], with qk_norm
  const TensorEntry* k_norm = nullptr;
  const TensorEntry* o = nullptr;          // [hidden, heads * head_dim]
  const TensorEntry* ffn_norm = nullptr;   // [hidden]
  const TensorEntry* gate = nullptr;       // [ffn, hidden]
  const TensorEntry* up = nullptr;
  const TensorEntry* down = nullptr;       // [hidden, ffn]
};

struct ModelTensors {
  const TensorEntry* embedding = nullptr;   // [vocab, hidden]
  std::vector<LayerTensors> layers;
  const TensorEntry* final_norm = nullptr;  // [hidden]
  const TensorEntry* lm_head = nullptr;     // [vocab, hidden]; null: tied, use the embedding
  std::vector<std::string> unused;          // tensors that no part needs and that change nothing
};

// Checks every shape against the config. An error lists what is missing, or names file, tensor, found and expected
// shape; a tensor inside a layer that the architecture does not know is an error too, since ignoring it would change
// the model silently. lm_head present although the config says tied: tied when the bytes are equal, else it is used.
Result<ModelTensors> collect(const WeightFiles& files, const ModelConfig& config);

}  // namespace tandem::model
