#pragma once
// Batch: one step's work, plain data; StepExecutor: whoever computes it. Spans live until execute() returns.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/sampling_params.h"
#include "serve/kv/block_id.h"
#include "serve/sched/request.h"
#include "serve/sched/token_mask.h"

namespace tandem::sched {

enum class SequenceId : uint64_t {};

// The part of one sequence that this step computes: KV for positions [begin, begin + count).
struct BatchItem {
  SequenceId sequence{};
  std::span<const TokenId> tokens;    // all known tokens, prompt first; [begin, begin + count) are computed
  uint32_t num_prompt_tokens = 0;     // of tokens
  uint32_t begin = 0;
  uint32_t count = 0;
  std::span<const kv::BlockId> blocks;  // the block table; covers position begin + count - 1
  bool samples = false;  // choose the next token from the last row's logits (begin + count == tokens.size())
  const SamplingParams* sampling = nullptr;
  TokenMask* mask = nullptr;     // of an item that samples: only what it allows may come. An error of it is the item's
  int32_t prompt_logprobs = -1;  // k >= 0: for each computed p with p + 1 < num_prompt_tokens, that of tokens[p + 1]
  Pooling pooling = Pooling::kNone;
  std::span<const double> pooled;  // kMean: the sum over the positions before begin; empty when there are none
};

// What the whole prompt's `pooled` is as an embedding; empty for kNone.
inline std::vector<float> embedding_of(Pooling pooling, size_t num_prompt, std::span<const double> pooled) {
  std::vector<float> embedding;
  if (pooling == Pooling::kNone) return embedding;
  const double divisor = pooling == Pooling::kMean ? static_cast<double>(num_prompt) : 1;
  for (const double value : pooled) embedding.push_back(static_cast<float>(value / divisor));
  return embedding;
}

struct BlockCopy {
  kv::BlockId from;
  kv::BlockId to;
};

struct Batch {
  std::vector<BlockCopy> copies;  // whole blocks, done before the step reads or writes anything
  std::vector<BatchItem> items;
  uint32_t num_tokens = 0;        // sum of counts
};

// What became of one item. An error ends that request alone.
struct ItemOutcome {
  std::optional<Error> error;
  TokenId token = -1;                         // when the item samples
  std::optional<TokenLogprob> logprob;        // when sampling->num_logprobs >= 0
  std::vector<TokenLogprob> prompt_logprobs;  // in rising position
  // kMean: the item's `pooled` and the hidden states computed now, added one after the other, so that chunks change no
  // bit. kLast: that of the prompt's last position, when it was computed.
  std::vector<double> pooled;
};

struct StepOutcome {
  std::vector<ItemOutcome> items;  // as in the batch
};

// Sees how far a step has come. Called on the executing thread in the middle of the step: short work only.
class StepObserver {
 public:
  // The KV of all the batch's positions in layers [0, num_layers) is written; this step writes none of it again.
  // Never falling; on an executor that cannot tell, not called at all.
  // The observer may run another batch here, on an executor that nests_steps().
  virtual void on_layers_written(uint32_t num_layers) = 0;

 protected:
  ~StepObserver() = default;
};

// Computes batches. Called by the engine thread only. An Error means that the whole step failed and left no
// trace that matters: the caller rolls back and may try the same batch again.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual Result<StepOutcome> execute(const Batch& batch) = 0;
  // The same, to the bit, with somebody who watches.
  virtual Result<StepOutcome> execute_observed(const Batch& batch, StepObserver& /*observer*/) {
    return execute(batch);
  }
  // Whether execute() may be called inside of on_layers_written(), one deep, for a batch that shares no sequence with
  // the step under way: neither changes a bit of the other.
  virtual bool nests_steps() const { return false; }
};

}  // namespace tandem::sched
