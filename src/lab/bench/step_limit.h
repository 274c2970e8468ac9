#pragma once
// The shortest time that a machine's limits allow for the steps of a measurement: per op the longer of reading its
// bytes and doing its arithmetic, summed over the ops. What an engine does beside (norms, barriers, activations)
// counts as lost.

#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem::bench {

enum class Arithmetic : uint8_t { kInt8, kBf16, kF32 };

// What one op of a model needs at least. Zeros where it has none of a kind.
struct OpCost {
  Arithmetic arithmetic = Arithmetic::kInt8;
  bool is_head = false;        // runs only for the rows whose logits are wanted
  double weight_bytes = 0;     // read once a step
  double ops_per_row = 0;      // two per weight
  double kv_bytes_per_key = 0; // read once a step for every key of a sequence: its rows share them
  double ops_per_key = 0;      // for every row and key that it sees
};

// What a step works on.
struct StepWork {
  double rows = 0;
  double head_rows = 0;
  double keys_read = 0;  // over the sequences
  double keys_seen = 0;  // over the rows
};

// Per second. Zero: not measured.
struct Peaks {
  double memory = 0;  // bytes read
  double int8 = 0, bf16 = 0, f32 = 0;  // operations
  double of(Arithmetic arithmetic) const;
};

struct LimitTime {
  double seconds = 0;
  std::string_view name;  // "memory", "int8", "bf16" or "f32": what binds the ops that take the largest part of it
};

// Zero seconds and no name when a peak that is needed is unknown, or there are no ops.
LimitTime limit_time(const std::vector<OpCost>& ops, const std::vector<StepWork>& steps, const Peaks& peaks);

}  // namespace tandem::bench
