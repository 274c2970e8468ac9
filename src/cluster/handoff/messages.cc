#include "cluster/handoff/messages.h"

namespace tandem::handoff {

std::string differing_field(const Fingerprint& a, const Fingerprint& b) {
  if (a.weights != b.weights) return "weights";
  if (a.kv_layout != b.kv_layout) return "kv_layout";
  if (a.kv_dtype != b.kv_dtype) return "kv_dtype";
  if (a.numerics != b.numerics) return "numerics";
  if (a.block_size != b.block_size) return "block_size";
  if (a.num_layers != b.num_layers) return "num_layers";
  if (a.num_kv_heads != b.num_kv_heads) return "num_kv_heads";
  return "";
}

const char* name_of(Part part) {
  switch (part) {
    case Part::kUnknown: return "unknown";
    case Part::kPrefillQueue: return "prefill queue";
    case Part::kPrefill: return "prefill";
    case Part::kPush: return "push";
    case Part::kTransfer: return "exposed transfer";
    case Part::kDecodeQueue: return "decode queue";
    case Part::kFirstEmit: return "first emit";
    case Part::kDecode: return "decode";
  }
  return "unknown";
}

HandoffShape shape_of(const RequestState& state, uint32_t block_size, uint32_t num_layer_groups) {
  HandoffShape shape{block_size, num_layer_groups, static_cast<uint32_t>(state.prompt.size()), {}, {}};
  for (const ChoiceState& choice : state.choices) {
    shape.choice_tokens.push_back(static_cast<uint32_t>(choice.tokens.size()));
    shape.is_finished.push_back(choice.is_finished);
  }
  return shape;
}

bool makes_work(const SessionMessage& message) {
  return std::holds_alternative<Reserve>(message) || std::holds_alternative<Prefill>(message) ||
         std::holds_alternative<Hold>(message);
}

}  // namespace tandem::handoff
