#pragma once
// From a model's config and tensors to its graphs: one function per architecture, over shared layer pieces.

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "compute/device/device_abi.h"
#include "compute/graph/graph.h"
#include "compute/model/model_config.h"
#include "compute/model/weight_names.h"

namespace tandem::model {

enum class Activations : uint8_t { kF32, kBF16, kInt8 };
const char* activations_name(Activations activations);  // f32 bf16 int8, as --activations spells them

// int8 for weights that are block-quantised or will be, bf16 for BF16, f32 for F16 and F32 (docs/numerics.md, "Which
// linear").
Activations default_activations(const ModelTensors& tensors, td_quantization quantization);

struct BuildOptions {
  Activations activations = Activations::kF32;
  td_quantization quantization = TD_QUANTIZE_NONE;
  std::span<const float> rope_table;  // rope_cos_sin() for as many positions as will be used; must outlive the graphs
  uint32_t num_positions = 0;
};

// External values that join the two graphs and the caller.
inline constexpr uint32_t kHiddenSlot = 0;  // f32 [tokens, hidden]: body's output, head's input
inline constexpr uint32_t kLogitsSlot = 1;  // f32 [outputs, vocab]: head's output
inline constexpr uint32_t kNormedSlot = 2;  // f32 [outputs, hidden]: pool's output

struct ModelGraphs {
  graph::Graph body;  // token ids to hidden states, all layers; writes KV
  graph::Graph head;  // gathers output rows of the hidden states, final norm, logits
  graph::Graph pool;  // the same rows and norm alone, for embeddings; its one weight is among the head's
};

// kInvalidArgument for an architecture without a builder.
Result<ModelGraphs> build_graphs(const ModelConfig& config, const ModelTensors& tensors, const BuildOptions& options);

// Largest power of two <= 16 that divides the number of 32-blocks of k and, when given, of heads (numerics 2).
uint32_t num_segments(uint32_t k, uint32_t num_heads);

}  // namespace tandem::model
