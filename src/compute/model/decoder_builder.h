#pragma once
// DecoderBuilder: the pieces that decoder architectures are put together from. Used by build_graph.cc only; a new
// architecture combines these and adds what is new.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compute/graph/graph.h"
#include "compute/model/build_graph.h"

namespace tandem::model {

class DecoderBuilder {
 public:
  // All three must outlive the builder; it appends to `graph`.
  DecoderBuilder(graph::Graph& graph, const ModelConfig& config, const BuildOptions& options);

  struct AttentionVariant {
    bool has_qkv_bias = false;
    bool has_qk_norm = false;
  };

  void embed(const TensorEntry& table);
  void attention_block(uint32_t layer, const LayerTensors& tensors, AttentionVariant variant);
  void gated_ffn_block(uint32_t layer, const LayerTensors& tensors);
  // The residual stream so far becomes the external hidden value.
  void finish_hidden();
  void logits(const TensorEntry& norm, const TensorEntry& lm_head);
  // Output rows of the hidden value, normed: the external normed value.
  void normed_rows(const TensorEntry& norm);

 private:
  graph::ValueId output_rows();
  graph::ValueId norm(graph::ValueId input, const TensorEntry& weight, const std::string& name);
  // `input` in the format that a linear with this weight takes; made once per input and format.
  graph::ValueId as_input_of(const TensorEntry& weight, graph::ValueId input);
  graph::ValueId linear(graph::ValueId input, const TensorEntry& weight, const TensorEntry* bias, uint32_t segments,
                        const std::string& name);
  graph::ValueId head_op(td_op_kind op, graph::ValueId input, graph::WeightId weight, uint32_t num_heads,
                         const std::string& name);
  void add_residual(graph::ValueId summand, const std::string& name);
  graph::WeightId vector_weight(const TensorEntry& tensor);
  td_format linear_format(const TensorEntry& weight) const;

  graph::Graph& graph_;
  const ModelConfig& config_;
  const BuildOptions& options_;
  uint32_t layer_ = 0;
  graph::ValueId stream_ = graph::kNone;        // the residual stream
  graph::WeightId rope_table_ = graph::kNone;   // added when first used
  std::map<std::pair<graph::ValueId, td_format>, graph::ValueId> converted_;
};

}  // namespace tandem::model
