#include "lab/bench/engine_measurement.h"

#include <algorithm>

#include <fmt/format.h>

namespace tandem::bench {
namespace {

uint32_t num_positions(const Point& point) { return std::max(point.depth + point.num_tokens, uint32_t{1}); }

uint32_t blocks_per_sequence(const Point& point, uint32_t block_size) {
  return (num_positions(point) + block_size - 1) / block_size;
}

// Any tokens do; fixed ones keep repetitions alike. (A linear congruential sequence, constants of Knuth's MMIX.)
std::vector<TokenId> some_tokens(uint32_t count, uint64_t seed, uint32_t vocab_size) {
  std::vector<TokenId> tokens;
  uint64_t state = seed + 1;
  for (uint32_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<TokenId>((state >> 33) % vocab_size));
  }
  return tokens;
}

}  // namespace

std::vector<Point> points_of(const std::vector<int64_t>& prompts, const std::vector<int64_t>& lengths,
                             const std::vector<int64_t>& depths, const std::vector<int64_t>& batches) {
  std::vector<Point> points;
  for (const int64_t depth : depths) {
    for (const int64_t prompt : prompts) {
      if (prompt == 0) continue;
      points.push_back({Kind::kPrefill, static_cast<uint32_t>(prompt), 1, static_cast<uint32_t>(depth)});
    }
  }
  for (const int64_t depth : depths) {
    for (const int64_t batch : batches) {
      for (const int64_t length : lengths) {
        if (length == 0) continue;
        points.push_back({Kind::kDecode, static_cast<uint32_t>(length), static_cast<uint32_t>(batch),
                          static_cast<uint32_t>(depth)});
      }
    }
  }
  return points;
}

uint32_t blocks_needed(const std::vector<Point>& points, uint32_t block_size) {
  uint32_t most = 0;
  for (const Point& point : points) most = std::max(most, point.batch * blocks_per_sequence(point, block_size));
  return most;
}

LimitShare limit_share(const Measurement& measurement, const ModelCost& cost, const Peaks& peaks) {
  const Point& point = measurement.point;
  if (measurement.tokens_per_s <= 0 || peaks.memory <= 0 || peaks.compute <= 0 || cost.weight_bytes <= 0) return {};
  const double tokens = static_cast<double>(point.num_tokens) * point.batch;
  // A row at position i attends to i + 1 keys; on average to these:
  const double keys_per_row = point.depth + (point.num_tokens + 1) / 2.0;
  const double ops = tokens * (cost.ops_per_token + keys_per_row * cost.ops_per_key);
  // Prefill reads the weights once, whatever the chunks: an engine that needs them more often is further from its
  // limit. The rows of one step share the keys of their sequence.
  double bytes = cost.weight_bytes + cost.kv_bytes_per_token * (point.depth + point.num_tokens);
  if (point.kind == Kind::kDecode) {
    bytes = point.num_tokens * (cost.weight_bytes + point.batch * keys_per_row * cost.kv_bytes_per_token);
  }
  const double seconds = tokens / measurement.tokens_per_s;
  const double memory_share = bytes / peaks.memory / seconds;
  const double compute_share = ops / peaks.compute / seconds;
  if (memory_share >= compute_share) return {memory_share, "memory"};
  return {compute_share, peaks.compute_name};
}

EngineBench::EngineBench(sched::StepExecutor& executor, const Clock& clock, BenchConfig config)
    : executor_(executor), clock_(clock), config_(config) {
  greedy_.temperature = 0;
}

Status EngineBench::check_fits(const Point& point) const {
  if (num_positions(point) > config_.max_model_len) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("{} tokens behind {} are more than the model's {}",
                                                          point.num_tokens, point.depth, config_.max_model_len)};
  }
  const uint32_t needed = point.batch * blocks_per_sequence(point, config_.block_size);
  if (needed > config_.num_blocks) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("batch {} with {} tokens each needs {} KV blocks, the pool has {}; see --kv-memory",
                             point.batch, num_positions(point), needed, config_.num_blocks)};
  }
  return Done{};
}

void EngineBench::start_sequences(const Point& point) {
  const uint32_t num_blocks = blocks_per_sequence(point, config_.block_size);
  sequences_.assign(point.batch, {});
  for (uint32_t i = 0; i < point.batch; ++i) {
    Sequence& sequence = sequences_[i];
    sequence.tokens = some_tokens(num_positions(point), i, config_.vocab_size);
    for (uint32_t block = 0; block < num_blocks; ++block) {
      sequence.blocks.push_back(static_cast<kv::BlockId>(i * num_blocks + block));
    }
  }
}

Result<sched::StepOutcome> EngineBench::run_step(sched::Batch& batch) {
  batch.num_tokens = 0;
  for (const sched::BatchItem& item : batch.items) batch.num_tokens += item.count;
  TRY_ASSIGN(sched::StepOutcome outcome, executor_.execute(batch));
  for (const sched::ItemOutcome& item : outcome.items) {
    if (item.error.has_value()) return *item.error;
  }
  return outcome;
}

Status EngineBench::prefill(uint32_t sequence_index, uint32_t end) {
  Sequence& sequence = sequences_[sequence_index];
  while (sequence.num_computed < end) {
    const uint32_t count = std::min(config_.chunk, end - sequence.num_computed);
    const bool is_last = sequence.num_computed + count == end;
    batch_.items.assign(1, {});
    sched::BatchItem& item = batch_.items[0];
    item.sequence = static_cast<sched::SequenceId>(sequence_index);
    item.tokens = std::span(sequence.tokens).first(end);
    item.num_prompt_tokens = end;
    item.begin = sequence.num_computed;
    item.count = count;
    item.blocks = sequence.blocks;
    item.samples = is_last;
    item.sampling = &greedy_;
    TRY(run_step(batch_));
    sequence.num_computed += count;
  }
  return Done{};
}

Status EngineBench::decode_step() {
  batch_.items.assign(sequences_.size(), {});
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    sched::BatchItem& item = batch_.items[i];
    item.sequence = static_cast<sched::SequenceId>(i);
    item.tokens = std::span(sequence.tokens).first(sequence.num_computed + 1);
    item.num_prompt_tokens = 1;
    item.begin = sequence.num_computed;
    item.count = 1;
    item.blocks = sequence.blocks;
    item.samples = true;
    item.sampling = &greedy_;
  }
  TRY_ASSIGN(const sched::StepOutcome outcome, run_step(batch_));
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    ++sequence.num_computed;
    if (sequence.num_computed < sequence.tokens.size()) {
      sequence.tokens[sequence.num_computed] = outcome.items[i].token;
    }
  }
  return Done{};
}

Result<double> EngineBench::timed_run_s(const Point& point) {
  for (Sequence& sequence : sequences_) sequence.num_computed = point.depth;
  const double begin_s = clock_.now_s();
  if (point.kind == Kind::kPrefill) {
    TRY(prefill(0, num_positions(point)));
  } else {
    for (uint32_t step = 0; step < point.num_tokens; ++step) TRY(decode_step());
  }
  return clock_.now_s() - begin_s;
}

Result<Measurement> EngineBench::measure(const Point& point) {
  TRY(check_fits(point));
  start_sequences(point);
  for (uint32_t i = 0; i < point.batch && point.depth > 0; ++i) TRY(prefill(i, point.depth));
  Point warm_up = point;
  if (point.kind == Kind::kDecode) warm_up.num_tokens = std::min(point.num_tokens, uint32_t{4});
  TRY(timed_run_s(warm_up));
  std::vector<double> seconds;
  for (uint32_t i = 0; i < config_.num_repetitions; ++i) {
    TRY_ASSIGN(const double run_s, timed_run_s(point));
    seconds.push_back(run_s);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median_s = seconds[seconds.size() / 2];
  if (median_s <= 0) return Error{ErrorCode::kInternal, "the clock did not move"};
  return Measurement{point, static_cast<double>(point.num_tokens) * point.batch / median_s,
                     (seconds.back() - seconds.front()) / median_s};
}

}  // namespace tandem::bench
