#include "serve/runner/model_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "serve/kv/block_id.h"

namespace tandem::runner {

namespace {

sched::TokenLogprob to_sched(sampling::TokenLogprob from) {
  return {from.token, from.logprob, from.rank, std::move(from.top)};
}

}  // namespace

ModelRunner::~ModelRunner() = default;

Result<sched::StepOutcome> ModelRunner::run(const sched::Batch& batch, sched::StepObserver* observer) {
  TANDEM_CHECK(num_running_ < steps_.size() && (num_running_ == 0 || batch.copies.empty()));
  auto outcome = run_in(steps_[num_running_++], batch, observer);
  --num_running_;
  return outcome;
}

Result<sched::StepOutcome> ModelRunner::run_in(Step& step, const sched::Batch& batch, sched::StepObserver* observer) {
  sched::StepOutcome outcome;
  outcome.items.resize(batch.items.size());
  step.copies.clear();
  for (const sched::BlockCopy& copy : batch.copies) step.copies.push_back({kv::index(copy.from), kv::index(copy.to)});
  TRY(stream_->copy_blocks(kv_.address(), kv_layout_, step.copies));
  TRY(run_body(step, batch, observer));
  collect_outputs(step, batch);
  for (size_t begin = 0; begin < step.outputs.size(); begin += kHeadRows) {
    TRY(run_head(step, batch, begin, std::min(begin + kHeadRows, step.outputs.size()), outcome));
  }
  TRY(pool_rows(step, batch, outcome));
  uint32_t row = 0;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    for (uint32_t end = row + batch.items[i].count; row < end; ++row) {
      if (step.row_faults[row] == 0 || outcome.items[i].error) continue;
      outcome.items[i].error = Error{
          ErrorCode::kInternal,
          fmt::format("the model computed a value that is not finite at position {} of this request",
                      batch.items[i].begin + (row - (end - batch.items[i].count)))};
    }
  }
  return outcome;
}

uint8_t* ModelRunner::kv_address(kv::BlockId block, uint32_t layer, uint32_t num_layers) {
  TANDEM_CHECK(kv::index(block) < num_blocks_ && num_layers <= kv_layout_.num_layers &&
               layer <= kv_layout_.num_layers - num_layers);
  return static_cast<uint8_t*>(kv_.address()) + kv::index(block) * kv_layout_.block_stride +
         layer * kv_layout_.layer_stride;
}

Status ModelRunner::read_kv(kv::BlockId block, uint32_t layer, uint32_t num_layers, void* to) {
  const uint64_t size_bytes = num_layers * kv_layout_.layer_stride;
  if (is_host_visible_) {
    std::memcpy(to, kv_address(block, layer, num_layers), size_bytes);
    return Done{};
  }
  TRY(stream_->copy_to_host(to, kv_address(block, layer, num_layers), size_bytes));
  return stream_->synchronize();
}

Status ModelRunner::write_kv(kv::BlockId block, uint32_t layer, uint32_t num_layers, const void* from) {
  const uint64_t size_bytes = num_layers * kv_layout_.layer_stride;
  if (is_host_visible_) {
    std::memcpy(kv_address(block, layer, num_layers), from, size_bytes);
    return Done{};
  }
  TRY(stream_->copy_to_device(kv_address(block, layer, num_layers), from, size_bytes));
  return stream_->synchronize();
}

Status ModelRunner::read_kv_slots(kv::BlockId block, uint32_t begin, uint32_t count, void* to) {
  TANDEM_CHECK(kv::index(block) < num_blocks_);
  return device_.read_kv_slots(kv_.address(), kv_layout_, kv::index(block), begin, count, to);
}

Status ModelRunner::write_kv_slots(kv::BlockId block, uint32_t begin, uint32_t count, const void* from) {
  TANDEM_CHECK(kv::index(block) < num_blocks_);
  return device_.write_kv_slots(kv_.address(), kv_layout_, kv::index(block), begin, count, from);
}

Status ModelRunner::run_body(Step& step, const sched::Batch& batch, sched::StepObserver* observer) {
  step.token_ids.clear();
  step.sequences.clear();
  step.blocks.clear();
  for (const sched::BatchItem& item : batch.items) {
    TANDEM_CHECK(item.count > 0 && item.begin + item.count <= item.tokens.size());
    step.sequences.push_back({static_cast<uint32_t>(step.token_ids.size()), item.count, item.begin,
                          static_cast<uint32_t>(item.blocks.size()), nullptr});
    const auto new_tokens = item.tokens.subspan(item.begin, item.count);
    step.token_ids.insert(step.token_ids.end(), new_tokens.begin(), new_tokens.end());
    for (kv::BlockId block : item.blocks) step.blocks.push_back(kv::index(block));
  }
  size_t offset = 0;  // only now is step.blocks at its final place
  for (td_sequence& sequence : step.sequences) {
    sequence.blocks = step.blocks.data() + offset;
    offset += sequence.num_blocks;
  }
  step.row_faults.assign(step.token_ids.size(), 0);
  td_bindings bindings{};
  bindings.arena = step.arena.address();
  bindings.kv = kv_.address();
  bindings.external[model::kHiddenSlot] = step.hidden.address();
  bindings.num_tokens = static_cast<uint32_t>(step.token_ids.size());
  bindings.num_sequences = static_cast<uint32_t>(step.sequences.size());
  bindings.token_ids = step.token_ids.data();
  bindings.sequences = step.sequences.data();
  bindings.row_faults = step.row_faults.data();
  TRY(launch_body(bindings, observer));
  // While a device that computes by itself is at it. A mask keeps what it says, an error too, until choose().
  for (const sched::BatchItem& item : batch.items) {
    if (item.samples && item.mask != nullptr) static_cast<void>(item.mask->allowed());
  }
  return stream_->synchronize();
}

Status ModelRunner::launch_body(const td_bindings& bindings, sched::StepObserver* observer) {
  if (observer == nullptr || !body_->has_parts()) return body_->launch(*stream_, bindings);
  uint32_t begin = 0;
  for (uint32_t layer = 0; layer < layer_ends_.size(); ++layer) {
    TRY(body_->launch_part(*stream_, begin, layer_ends_[layer], bindings));
    TRY(stream_->synchronize());
    observer->on_layers_written(layer + 1);
    begin = layer_ends_[layer];
  }
  return body_->launch_part(*stream_, begin, num_body_ops_, bindings);
}

void ModelRunner::collect_outputs(Step& step, const sched::Batch& batch) {
  step.outputs.clear();
  step.output_rows.clear();
  uint32_t row = 0;
  for (uint32_t i = 0; i < batch.items.size(); ++i) {
    const sched::BatchItem& item = batch.items[i];
    for (uint32_t position = item.begin; position < item.begin + item.count; ++position, ++row) {
      const bool is_last = position + 1 == item.begin + item.count;
      const bool is_scored = item.prompt_logprobs >= 0 && position + 1 < item.num_prompt_tokens;
      const bool is_sampled = item.samples && is_last;
      if (!is_scored && !is_sampled) continue;
      step.outputs.push_back({i, position, is_sampled, is_scored});
      step.output_rows.push_back(row);
    }
  }
}

// The hidden states that embeddings are made of, in rising position, each added to what the item brought along.
Status ModelRunner::pool_rows(Step& step, const sched::Batch& batch, sched::StepOutcome& outcome) {
  step.pooled_rows.clear();
  step.pooled_items.clear();
  uint32_t row = 0;
  for (uint32_t i = 0; i < batch.items.size(); ++i) {
    const sched::BatchItem& item = batch.items[i];
    if (item.pooling == sched::Pooling::kMean) outcome.items[i].pooled.assign(item.pooled.begin(), item.pooled.end());
    for (uint32_t end = item.begin + item.count, position = item.begin; position < end; ++position, ++row) {
      const bool is_wanted = item.pooling == sched::Pooling::kMean ||
                             (item.pooling == sched::Pooling::kLast && position + 1 == item.num_prompt_tokens);
      if (!is_wanted) continue;
      step.pooled_rows.push_back(row);
      step.pooled_items.push_back(i);
    }
  }
  for (size_t begin = 0; begin < step.pooled_rows.size(); begin += kHeadRows) {
    const size_t count = std::min<size_t>(kHeadRows, step.pooled_rows.size() - begin);
    TRY(read_normed(step, std::span(step.pooled_rows).subspan(begin, count)));
    for (size_t i = 0; i < count; ++i) {
      const auto* values = reinterpret_cast<const float*>(step.host_normed.data() + i * hidden_row_bytes_);
      sched::ItemOutcome& item = outcome.items[step.pooled_items[begin + i]];
      item.pooled.resize(config_.hidden, 0.0);
      for (uint32_t column = 0; column < config_.hidden; ++column) item.pooled[column] += values[column];
      const auto is_finite = [](float value) { return std::isfinite(value); };
      if (item.error || std::all_of(values, values + config_.hidden, is_finite)) continue;
      item.error = Error{ErrorCode::kInternal, "the model computed a value that is not finite for this embedding"};
    }
  }
  return Done{};
}

// The rows' hidden states after the final norm, to step.host_normed. At most kHeadRows.
Status ModelRunner::read_normed(Step& step, std::span<const uint32_t> rows) {
  td_bindings bindings{};
  bindings.arena = step.arena.address();
  bindings.kv = kv_.address();
  bindings.external[model::kHiddenSlot] = step.hidden.address();
  bindings.external[model::kNormedSlot] = step.normed.address();
  bindings.num_outputs = static_cast<uint32_t>(rows.size());
  bindings.output_rows = rows.data();
  TRY(pool_->launch(*stream_, bindings));
  step.host_normed.resize(hidden_row_bytes_ * kHeadRows);
  TRY(stream_->copy_to_host(step.host_normed.data(), step.normed.address(), hidden_row_bytes_ * rows.size()));
  return stream_->synchronize();
}

Status ModelRunner::run_head(Step& step, const sched::Batch& batch, size_t begin, size_t end,
                             sched::StepOutcome& outcome) {
  td_bindings bindings{};
  bindings.arena = step.arena.address();
  bindings.kv = kv_.address();
  bindings.external[model::kHiddenSlot] = step.hidden.address();
  bindings.external[model::kLogitsSlot] = step.logits.address();
  bindings.num_outputs = static_cast<uint32_t>(end - begin);
  bindings.output_rows = step.output_rows.data() + begin;
  TRY(head_->launch(*stream_, bindings));
  const auto* logits = static_cast<const uint8_t*>(step.logits.address());
  if (!step.host_logits.empty()) {
    TRY(stream_->copy_to_host(step.host_logits.data(), step.logits.address(), logits_row_bytes_ * (end - begin)));
    logits = reinterpret_cast<const uint8_t*>(step.host_logits.data());
  }
  TRY(stream_->synchronize());
  for (size_t i = begin; i < end; ++i) {
    const OutputRow& row = step.outputs[i];
    sched::ItemOutcome& item_outcome = outcome.items[row.item];
    if (item_outcome.error) continue;
    const auto* values = reinterpret_cast<const float*>(logits + (i - begin) * logits_row_bytes_);
    if (on_logits_) on_logits_(row.item, row.position, {values, config_.vocab});
    choose(step, batch.items[row.item], row, {values, config_.vocab}, item_outcome);
  }
  return Done{};
}

void ModelRunner::choose(Step& step, const sched::BatchItem& item, const OutputRow& row, std::span<const float> logits,
                         sched::ItemOutcome& outcome) {
  if (row.is_scored) {
    auto scored = sampling::token_logprob(logits, item.tokens[row.position + 1],
                                          static_cast<uint32_t>(item.prompt_logprobs), step.scratch);
    if (!scored) {
      outcome.error = std::move(scored).error();
      return;
    }
    outcome.prompt_logprobs.push_back(to_sched(std::move(scored).value()));
  }
  if (!row.is_sampled) return;
  sampling::TokenHistory history{item.tokens.first(item.num_prompt_tokens),
                                 item.tokens.subspan(item.num_prompt_tokens)};
  if (item.mask != nullptr) {
    auto allowed = item.mask->allowed();
    if (!allowed) {
      outcome.error = std::move(allowed).error();
      return;
    }
    history.allowed = *allowed;
  }
  auto sampled = sampling::sample(logits, *item.sampling, history, row.position + 1, step.scratch);
  if (!sampled) {
    outcome.error = std::move(sampled).error();
    return;
  }
  outcome.token = sampled->token;
  if (sampled->logprob) outcome.logprob = to_sched(std::move(*sampled->logprob));
}

}  // namespace tandem::runner
