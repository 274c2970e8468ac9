#pragma once
// EngineBench: prefill and decode speed of a StepExecutor, without scheduler and API in the way.
//
// Prefill: a prompt of p tokens is computed in chunks behind d tokens that are in the cache already. Decode: b
// sequences with d tokens in the cache generate n tokens each, one a step. The letters are llama-bench's.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "serve/kv/block_id.h"
#include "serve/sched/batch.h"

namespace tandem::bench {

enum class Kind : uint8_t { kPrefill, kDecode };

struct Point {
  Kind kind = Kind::kPrefill;
  uint32_t num_tokens = 0;  // p, or n
  uint32_t batch = 1;       // b; 1 for prefill
  uint32_t depth = 0;       // d
};

// What one step costs at least, from the model's sizes. Zeros where unknown: no limit is computed then.
struct ModelCost {
  double weight_bytes = 0;         // read by every step
  double kv_bytes_per_token = 0;   // read per cached token and row that attends to it
  double ops_per_token = 0;        // of the linears: two per weight
  double ops_per_key = 0;          // of attention, per row and cached token
};

// What the machine can do: per second. `compute` is the peak of the activations' type.
struct Peaks {
  double memory = 0;
  double compute = 0;
  std::string_view compute_name;  // "int8", "bf16", "f32"
};

struct Measurement {
  Point point;
  double tokens_per_s = 0;  // of the median repetition, over the whole batch
  double spread = 0;        // (longest - shortest) / median time
};

// The part of a limit that a measurement reached.
struct LimitShare {
  double fraction = 0;
  std::string_view name;  // "memory", or Peaks::compute_name: whichever allows less; empty: unknown
};

struct BenchConfig {
  uint32_t block_size = 16;
  uint32_t num_blocks = 0;
  uint32_t vocab_size = 0;
  uint32_t max_model_len = 0;
  uint32_t chunk = 512;  // tokens of a prefill step
  uint32_t num_repetitions = 5;
};

// All combinations: for each depth every prompt length, then for each depth every batch and length. Zeros among the
// lengths ask for nothing.
std::vector<Point> points_of(const std::vector<int64_t>& prompts, const std::vector<int64_t>& lengths,
                             const std::vector<int64_t>& depths, const std::vector<int64_t>& batches);

// Blocks that the largest of the points needs.
uint32_t blocks_needed(const std::vector<Point>& points, uint32_t block_size);

LimitShare limit_share(const Measurement& measurement, const ModelCost& cost, const Peaks& peaks);

// Borrows executor and clock. One thread.
class EngineBench {
 public:
  EngineBench(sched::StepExecutor& executor, const Clock& clock, BenchConfig config);

  // One warm-up, then the repetitions. kInvalidArgument when the point does not fit the pool or the model's length;
  // otherwise the errors of the executor.
  Result<Measurement> measure(const Point& point);

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<kv::BlockId> blocks;
    uint32_t num_computed = 0;
  };

  Status check_fits(const Point& point) const;
  void start_sequences(const Point& point);
  Status prefill(uint32_t sequence_index, uint32_t end);  // computes up to position `end`
  Status decode_step();                                   // one more token of every sequence
  Result<double> timed_run_s(const Point& point);
  Result<sched::StepOutcome> run_step(sched::Batch& batch);

  sched::StepExecutor& executor_;
  const Clock& clock_;
  BenchConfig config_;
  SamplingParams greedy_;
  std::vector<Sequence> sequences_;
  sched::Batch batch_;
};

}  // namespace tandem::bench
