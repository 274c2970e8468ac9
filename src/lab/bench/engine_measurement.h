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
#include "lab/bench/step_limit.h"
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

// Reads the weights as the packed model holds them, plainly; returns bytes per second.
using ReadMeter = std::function<double()>;

struct Repetition {
  double seconds = 0;
  double read_bytes_per_s = 0;  // mean of just before and just after; 0: not measured
  bool is_steady = true;        // the two differed by little
};

struct Measurement {
  Point point;
  double tokens_per_s = 0;  // of the median repetition, over the whole batch
  double spread = 0;        // (longest - shortest) / median time
  std::vector<Repetition> repetitions;  // the shortest first
};

// The part of the limit that a measurement reached, each repetition against the reads around it.
struct LimitShare {
  double fraction = 0;           // limit time / measured time, median of the repetitions
  std::string_view name;         // as in LimitTime; empty: unknown
  double read_bytes_per_s = 0;   // median of the repetitions
  bool is_steady = true;         // of all repetitions
};

struct BenchConfig {
  uint32_t block_size = 16;
  uint32_t num_blocks = 0;
  uint32_t vocab_size = 0;
  uint32_t max_model_len = 0;
  uint32_t chunk = 512;  // tokens of a prefill step
  uint32_t num_repetitions = 5;
  uint32_t window = 0;  // keys that a row sees, itself included; 0: all
  // Called before and after each repetition; one whose two reads differ too much is repeated, a bounded number of
  // times. Empty: no reads.
  ReadMeter read_meter;
};

// All combinations: for each depth every prompt length, then for each depth every batch and length. Zeros among the
// lengths ask for nothing.
std::vector<Point> points_of(const std::vector<int64_t>& prompts, const std::vector<int64_t>& lengths,
                             const std::vector<int64_t>& depths, const std::vector<int64_t>& batches);

// Blocks that the largest of the points needs.
uint32_t blocks_needed(const std::vector<Point>& points, uint32_t block_size);

// The steps of one repetition, as EngineBench runs them.
std::vector<StepWork> steps_of(const Point& point, const BenchConfig& config);

// `peaks.memory` is not looked at: the repetitions have their own.
LimitShare limit_share(const Measurement& measurement, const std::vector<OpCost>& ops, const BenchConfig& config,
                       Peaks peaks);

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
  Result<Repetition> repeat(const Point& point);
  Result<sched::StepOutcome> run_step(sched::Batch& batch);

  sched::StepExecutor& executor_;
  const Clock& clock_;
  BenchConfig config_;
  SamplingParams greedy_;
  std::vector<Sequence> sequences_;
  sched::Batch batch_;
};

}  // namespace tandem::bench
