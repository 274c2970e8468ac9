#pragma once
// What both sources of a ModelConfig share: filling in derived values and checking the whole.

#include <cmath>
#include <string>

#include "compute/model/model_config.h"

namespace tandem::model {

class WeightFiles;

Result<ModelConfig> read_gguf_config(const WeightFiles& files);

Error unsupported(const std::string& source, const std::string& what);

void add_eos_id(int64_t id, ModelConfig* config);

// yarn's default attention factor: 0.1 * mscale * ln(factor) + 1, and 1 for factors up to 1.
inline double yarn_attention_factor(double factor, double mscale = 1.0) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Fails on values that are absent (0), out of proportion to each other or beyond sane limits; every product of them
// that later code forms fits 64 bits. Drops eos ids that are outside the vocabulary.
Status check_config(const std::string& source, ModelConfig* config);

}  // namespace tandem::model
