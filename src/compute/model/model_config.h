#pragma once
// ModelConfig: what a graph builder has to know of a model, read from GGUF metadata or from config.json and
// generation_config.json. Plain value; all fields are checked (positive, consistent, below sane limits).

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::model {

class WeightFiles;

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;              // linear, llama3, yarn
  double low_freq_factor = 1.0;     // llama3
  double high_freq_factor = 4.0;    // llama3
  uint32_t original_max_position = 0;  // llama3, yarn
  double attention_factor = 1.0;    // yarn: cos and sin are multiplied by it
  double beta_fast = 32.0;          // yarn
  double beta_slow = 1.0;           // yarn
  bool truncate = true;             // yarn: the correction range is widened to whole dimensions
  bool is_interleaved = false;      // true: pairs (2i, 2i+1), GGUF `llama`; false: (i, i + head_dim / 2)
  std::vector<float> freq_factors;  // divisors of the frequencies, head_dim / 2 (GGUF rope_freqs.weight), or empty
};

struct ModelConfig {
  std::string architecture;  // llama, mistral, qwen2, qwen3
  uint32_t num_layers = 0;
  uint32_t hidden = 0;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t ffn = 0;
  uint32_t vocab = 0;
  float norm_eps = 0;
  RopeConfig rope;
  uint32_t sliding_window = 0;  // keys a query sees, itself included; 0: all
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  uint32_t max_position = 0;     // trained context length, after rope scaling as the file states it
  std::vector<int32_t> eos_ids;  // union over all places that name one, first found first, no duplicates
  int32_t bos_id = -1;           // -1: none
};

// Unsupported architectures, rope types and fields that would change the result give an error naming them.
Result<ModelConfig> read_config(const WeightFiles& files);

// The second source alone, for tests and tools that have no files. `generation_json` may be empty; `source` names the
// file in messages.
Result<ModelConfig> parse_hf_config(const std::string& config_json, const std::string& generation_json,
                                    const std::string& source);

}  // namespace tandem::model
