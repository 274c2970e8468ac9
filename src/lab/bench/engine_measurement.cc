#include "lab/bench/engine_measurement.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace tandem::bench {
namespace {

// Reads before and after a repetition that differ by more tell nothing of what it could have read.
constexpr double kSteadyDifference = 0.05;
constexpr int kMaxTries = 3;

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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
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

std::vector<StepWork> steps_of(const Point& point, const BenchConfig& config) {
  std::vector<StepWork> steps;
  const uint32_t window = config.window == 0 ? UINT32_MAX : config.window;
  const uint32_t chunk = point.kind == Kind::kPrefill ? config.chunk : 1;
  for (uint32_t begin = 0; begin < point.num_tokens; begin += chunk) {
    const uint32_t count = std::min(chunk, point.num_tokens - begin);
    StepWork step;
    step.rows = static_cast<double>(point.batch) * count;
    // A prompt's last row alone goes through the head; in decode each does.
    step.head_rows = point.kind == Kind::kDecode || begin + count == point.num_tokens ? point.batch : 0;
    for (uint32_t i = 0; i < count; ++i) step.keys_seen += std::min(window, point.depth + begin + i + 1);
    // The rows of a sequence see its last keys, from the first that the first row sees.
    const double before_first = std::min(window, point.depth + begin + 1) - 1.0;
    step.keys_read = point.batch * (before_first + count);
    step.keys_seen *= point.batch;
    steps.push_back(step);
  }
  return steps;
}

LimitShare limit_share(const Measurement& measurement, const std::vector<OpCost>& ops, const BenchConfig& config,
                       Peaks peaks) {
  const std::vector<StepWork> steps = steps_of(measurement.point, config);
  LimitShare share;
  std::vector<double> fractions, reads;
  for (const Repetition& repetition : measurement.repetitions) {
    peaks.memory = repetition.read_bytes_per_s;
    const LimitTime limit = limit_time(ops, steps, peaks);
    if (limit.name.empty()) return {};
    share.name = limit.name;
    share.is_steady = share.is_steady && repetition.is_steady;
    fractions.push_back(limit.seconds / repetition.seconds);
    reads.push_back(repetition.read_bytes_per_s);
  }
  if (fractions.empty()) return {};
  share.fraction = median(std::move(fractions));
  share.read_bytes_per_s = median(std::move(reads));
  return share;
}

EngineBench::EngineBench(sched::StepExecutor& executor, const Clock& clock, BenchConfig config)
    : executor_(executor), clock_(clock), config_(std::move(config)) {
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

Result<Repetition> EngineBench::repeat(const Point& point) {
  Repetition best;
  double least_difference = 0;
  for (int attempt = 0; attempt < kMaxTries; ++attempt) {
    const double before = config_.read_meter ? config_.read_meter() : 0;
    TRY_ASSIGN(const double seconds, timed_run_s(point));
    if (!config_.read_meter) return Repetition{seconds, 0, true};
    const double mean = (before + config_.read_meter()) / 2;
    const double difference = mean > 0 ? std::abs(before - mean) * 2 / mean : 0;
    if (attempt == 0 || difference < least_difference) {
      least_difference = difference;
      best = {seconds, mean, difference <= kSteadyDifference};
    }
    if (best.is_steady) break;
  }
  return best;
}

Result<Measurement> EngineBench::measure(const Point& point) {
  TRY(check_fits(point));
  start_sequences(point);
  for (uint32_t i = 0; i < point.batch && point.depth > 0; ++i) TRY(prefill(i, point.depth));
  Point warm_up = point;
  if (point.kind == Kind::kDecode) warm_up.num_tokens = std::min(point.num_tokens, uint32_t{4});
  TRY(timed_run_s(warm_up));
  Measurement measurement{point, 0, 0, {}};
  std::vector<Repetition>& repetitions = measurement.repetitions;
  for (uint32_t i = 0; i < config_.num_repetitions; ++i) {
    TRY_ASSIGN(const Repetition repetition, repeat(point));
    repetitions.push_back(repetition);
  }
  std::ranges::stable_sort(repetitions, {}, &Repetition::seconds);
  const double median_s = repetitions[repetitions.size() / 2].seconds;
  if (median_s <= 0) return Error{ErrorCode::kInternal, "the clock did not move"};
  measurement.tokens_per_s = static_cast<double>(point.num_tokens) * point.batch / median_s;
  measurement.spread = (repetitions.back().seconds - repetitions.front().seconds) / median_s;
  return measurement;
}

}  // namespace tandem::bench
