#pragma once
// Models of well-known shapes with random weights: the speed of a model does not depend on its weights' values, so its
// shape can be measured without its file. The same name and type always give the same bytes.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::bench {

// "llama-1b" (Llama-3.2-1B), "smol" (SmolLM2-135M), "qwen-0.5b" (Qwen2.5-0.5B).
std::span<const std::string_view> random_shapes();
// "q8_0", "q4_0", "q4_1", "bf16": of all matrices, the embedding among them.
std::span<const std::string_view> random_types();

// A whole GGUF file, without a vocabulary. The weights look like those of a trained model (zero mean, deviation 0.03),
// so that activations stay finite. kInvalidArgument for another name. Takes about a second per GB.
Result<std::vector<uint8_t>> random_gguf(std::string_view shape, std::string_view type);

}  // namespace tandem::bench
