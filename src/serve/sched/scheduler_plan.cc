// Scheduler: planning a step, and taking the plan back.

#include <algorithm>

#include "base/check.h"
#include "serve/sched/scheduler.h"

namespace tandem::sched {

void Scheduler::begin_plan() {
  TANDEM_CHECK(!is_planned_);
  is_planned_ = true;
  has_preempted_ = false;
  planned_.clear();
  copies_.clear();
  shape_ = {};
  undo_.progress.clear();
  undo_.first_scheduled.clear();
  undo_.preempted.clear();
  undo_.running = running_;
  undo_.counts = counts_;
  undo_.last_forced_preemption = last_forced_preemption_;
  pool_.begin();
}

// From here on the plan is what happened.
void Scheduler::end_plan() {
  pool_.accept();
  line_.accept_charges();
  is_planned_ = false;
}

void Scheduler::discard_plan() {
  TANDEM_CHECK(is_planned_);
  pool_.undo_to(0);
  for (size_t i = undo_.progress.size(); i-- > 0;) {
    auto& [sequence, before] = undo_.progress[i];
    line_.unlink(*sequence);
    sequence->progress = std::move(before);
    line_.link(*sequence);
  }
  for (const auto& [state, first] : undo_.first_scheduled) {
    state->scheduled_ns = first.first;
    state->num_cached_tokens = first.second;
  }
  running_ = undo_.running;
  counts_ = undo_.counts;
  last_forced_preemption_ = undo_.last_forced_preemption;
  line_.undo_charges();
  planned_.clear();
  copies_.clear();
  end_plan();
}

void Scheduler::rollback() {
  const std::vector<kv::BlockId> evicted = pool_.evicted();
  const std::vector<Sequence*> preempted = undo_.preempted;
  discard_plan();
  if (!preempted.empty()) {
    begin_plan();
    for (Sequence* sequence : preempted) preempt(*sequence);
    end_plan();
  }
  for (const kv::BlockId block : evicted) pool_.uncache(block);
}

void Scheduler::change(Sequence& sequence, const Progress& progress) {
  undo_.progress.emplace_back(&sequence, sequence.progress);
  line_.unlink(sequence);
  sequence.progress = progress;
  line_.link(sequence);
}

void Scheduler::preempt(Sequence& victim) {
  ++counts_.num_preemptions;
  counts_.num_recomputed_tokens += victim.progress.num_computed;
  has_preempted_ = true;
  undo_.preempted.push_back(&victim);
  std::erase(running_, &victim);
  pool_.release_all(victim.progress.table.blocks());
  Progress waiting;
  waiting.is_at_front = true;
  change(victim, waiting);
}

Batch Scheduler::plan_step(int64_t now_ns) {
  begin_plan();
  force_preemption();
  plan_decodes();
  plan_prefills(now_ns);
  Batch batch = build_batch();
  if (batch.items.empty()) discard_plan();
  return batch;
}

// Only sequences that decode: one that is still in its prompt might never come to its end.
void Scheduler::force_preemption() {
  if (config_.force_preempt_every == 0) return;
  if (counts_.num_steps < last_forced_preemption_ + config_.force_preempt_every) return;
  const auto is_decoding = [](const Sequence* s) { return s->progress.phase == Phase::kDecode; };
  const auto victim = std::find_if(running_.rbegin(), running_.rend(), is_decoding);
  if (victim == running_.rend()) return;
  last_forced_preemption_ = counts_.num_steps;
  preempt(**victim);
}

void Scheduler::plan_decodes() {
  // Best rank first: whoever is preempted has not been planned yet.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.progress.phase != Phase::kDecode || !has_decode_block(sequence)) continue;
    const uint32_t position = sequence.progress.num_computed;
    planned_.push_back({&sequence, position, 1, true});
    shape_.add_decode(position);
  }
}

// Makes the table cover the next position, at the cost of sequences of lower rank. False when the sequence itself
// was the lowest and is preempted.
bool Scheduler::has_decode_block(Sequence& sequence) {
  const uint32_t needed = sequence.progress.num_computed / config_.block_size + 1;
  while (sequence.progress.table.size() < needed) {
    const kv::BlockTable& table = sequence.progress.table;
    const auto taken = pool_.take(1, kv::Part::kPrivate, table[table.size() - 1]);
    if (taken) {
      Progress longer = sequence.progress;
      longer.table.append(taken->front());
      change(sequence, longer);
      continue;
    }
    Sequence& victim = *running_.back();
    preempt(victim);
    if (&victim == &sequence) return false;
  }
  return true;
}

bool Scheduler::may_admit(int64_t now_ns) const {
  if (line_.num_waiting() == 0 || running_.size() >= config_.max_num_seqs) return false;
  // What was just taken away must not go to a newcomer, nor come back and be taken again in the next step.
  if (has_preempted_ && !running_.empty()) return false;
  const uint64_t free_seats = config_.max_num_seqs - running_.size();
  BatchWindow::View view;
  view.now_ns = now_ns;
  view.oldest_arrival_ns = line_.oldest_arrival_ns();
  view.is_running = !running_.empty();
  view.is_full = line_.num_waiting() >= free_seats || line_.num_waiting_tokens() >= config_.max_num_batched_tokens;
  return !window_.is_open(view);
}

void Scheduler::plan_prefills(int64_t now_ns) {
  LineWalk walk(line_, may_admit(now_ns));
  while (Sequence* sequence = walk.next()) {
    if (!plan_chunk(*sequence, walk, now_ns)) break;
  }
}

// False when the budget is used up.
bool Scheduler::plan_chunk(Sequence& sequence, LineWalk& walk, int64_t now_ns) {
  const bool is_waiting = sequence.progress.phase == Phase::kWaiting;
  const bool is_fork = is_waiting && can_fork(sequence);
  kv::PrefixMatch match;
  uint32_t begin = sequence.progress.num_computed;
  if (is_fork) {
    begin = sequence.num_tokens() - 1;
  } else if (is_waiting) {
    match = match_prefix(sequence);
    begin = static_cast<uint32_t>(match.blocks.size()) * config_.block_size;
  }
  uint32_t want = sequence.num_tokens() - begin;
  if (config_.forced_chunk > 0) want = std::min(want, config_.forced_chunk);
  const uint32_t count = budget_.chunk(shape_, cost_, {begin, want, line_.num_tenants() > 1});
  if (count == 0) return false;
  if (is_waiting) {
    const Reserve reserve = reserve_from(sequence);
    const bool has_seat = running_.size() + reserve.num_seats < config_.max_num_seqs;
    const bool is_admitted =
        has_seat && (is_fork ? admit_fork(sequence, now_ns) : admit(sequence, match, reserve.num_blocks, now_ns));
    // The head of the line waits for room, and nobody overtakes it: else small requests could keep a large one out.
    // Whom only the reserve keeps out is passed by those that it is for; they are its own tenant's as little as it is.
    if (!is_admitted && reserve.num_seats > 0) walk.stop_tenant();
    else if (!is_admitted || running_.size() >= config_.max_num_seqs) walk.stop_admission();
    if (!is_admitted) return true;
  }
  const bool is_last = begin + count == sequence.num_tokens();
  planned_.push_back({&sequence, begin, count, is_last && sequence.request->end.max_tokens > 0});
  shape_.add_prefill(begin, count);
  line_.charge(sequence.request->request.tenant, count);
  return true;
}

kv::PrefixMatch Scheduler::match_prefix(const Sequence& sequence) const {
  if (!config_.enable_prefix_caching) return {};
  // The logprobs of prompt tokens, and the mean of their hidden states, come from computing the prompt.
  const Request& request = sequence.request->request;
  const bool needs_all = request.prompt_logprobs >= 0 || request.pooling == Pooling::kMean;
  if (needs_all && sequence.choice == 0 && !sequence.request->has_prompt) return {};
  // At least one token is computed, for its logits.
  return pool_.match(sequence.tokens, request.cache_salt, (sequence.num_tokens() - 1) / config_.block_size);
}

// Appends blocks until the table has `num_blocks`: those of the prompt from the shared part, later ones as decode
// takes them, so that a preempted sequence comes back into what it had.
bool Scheduler::take_blocks(kv::BlockTable& table, uint32_t num_blocks, uint32_t num_prompt) {
  const uint32_t num_shared = std::min(num_blocks, kv::blocks_for(num_prompt, config_.block_size));
  const std::pair<uint32_t, kv::Part> ranges[] = {{num_shared, kv::Part::kShared}, {num_blocks, kv::Part::kPrivate}};
  for (const auto& [end, part] : ranges) {
    if (table.size() >= end) continue;
    const auto after = table.size() > 0 ? std::optional(table[table.size() - 1]) : std::nullopt;
    const auto taken = pool_.take(end - table.size(), part, after);
    if (!taken) return false;
    table.append(*taken);
  }
  return true;
}

// What the sequence has to leave free because its tenant holds its share already. A tenant that holds nothing is never
// kept out by it, so that what is too large for the rest comes in at last.
Scheduler::Reserve Scheduler::reserve_from(const Sequence& sequence) const {
  if (config_.tenant_weights.size() < 2 || running_.empty()) return {};
  const std::string& tenant = sequence.request->request.tenant;
  double all = 0, own = 1;
  for (const auto& [name, weight] : config_.tenant_weights) {
    all += weight;
    if (name == tenant) own = weight;
  }
  size_t num_seats = 0;
  uint64_t num_blocks = 0;
  for (const Sequence* running : running_) {
    if (running->request->request.tenant != tenant) continue;
    ++num_seats;
    num_blocks += running->progress.table.size();
  }
  const double share = own / all;
  const bool is_within = static_cast<double>(num_seats) < share * config_.max_num_seqs &&
                         static_cast<double>(num_blocks) < share * config_.num_blocks;
  if (is_within) return {};
  constexpr uint32_t kReservePart = 8;
  return {config_.max_num_seqs > 1 ? std::max(config_.max_num_seqs / kReservePart, 1u) : 0,
          config_.num_blocks / kReservePart};
}

bool Scheduler::keeps_decode_reserve() const {
  const uint64_t reserve = uint64_t{config_.decode_reserve_blocks} * running_.size();
  return pool_.num_available(kv::Part::kPrivate) >= reserve;
}

void Scheduler::mark_scheduled(Sequence& sequence, uint32_t num_cached, int64_t now_ns) {
  RequestState& state = *sequence.request;
  if (state.scheduled_ns != 0) return;
  undo_.first_scheduled.push_back({&state, {state.scheduled_ns, state.num_cached_tokens}});
  state.scheduled_ns = std::max<int64_t>(now_ns, 1);
  state.num_cached_tokens = num_cached;
}

bool Scheduler::admit(Sequence& sequence, const kv::PrefixMatch& match, uint32_t num_kept, int64_t now_ns) {
  const size_t mark = pool_.mark();
  const auto num_prompt = static_cast<uint32_t>(sequence.request->request.prompt.size());
  Progress progress;
  progress.phase = Phase::kPrefill;
  bool has_room = true;
  for (const kv::BlockId block : match.blocks) {
    const bool is_prompt = progress.table.size() * config_.block_size < num_prompt;
    has_room = has_room && pool_.share(block, is_prompt ? kv::Part::kShared : kv::Part::kPrivate);
    if (has_room) progress.table.append(block);
  }
  const uint32_t num_blocks = kv::blocks_for(sequence.num_tokens(), config_.block_size);
  has_room = has_room && take_blocks(progress.table, num_blocks, num_prompt) && keeps_decode_reserve() &&
             pool_.num_available(kv::Part::kPrivate) >= num_kept;
  if (!has_room) {
    pool_.undo_to(mark);
    return false;
  }
  progress.num_computed = static_cast<uint32_t>(match.blocks.size()) * config_.block_size;
  progress.num_published = static_cast<uint32_t>(match.blocks.size());
  progress.published_node = match.last;
  if (config_.enable_prefix_caching && sequence.request->scheduled_ns == 0) {
    counts_.prefix_queries_tokens += sequence.num_tokens();
    counts_.prefix_hits_tokens += progress.num_computed;
  }
  mark_scheduled(sequence, progress.num_computed, now_ns);
  change(sequence, progress);
  insert_running(sequence);
  return true;
}

// A choice without output, while choice 0 holds the computed prompt.
bool Scheduler::can_fork(const Sequence& sequence) const {
  const RequestState& state = *sequence.request;
  if (sequence.choice == 0 || sequence.tokens.size() != state.request.prompt.size()) return false;
  return state.choices[0]->progress.phase == Phase::kDecode;
}

// Shares the full blocks of the prompt but for its last token, which is computed again for its logits; the block that
// this writes to is a copy.
bool Scheduler::admit_fork(Sequence& sequence, int64_t now_ns) {
  const size_t mark = pool_.mark();
  const kv::BlockTable& source = sequence.request->choices[0]->progress.table;
  const uint32_t last = sequence.num_tokens() - 1;
  const uint32_t num_shared = last / config_.block_size;
  Progress progress;
  progress.phase = Phase::kPrefill;
  progress.num_computed = last;
  bool has_room = true;
  for (uint32_t i = 0; i < num_shared && has_room; ++i) {
    has_room = pool_.share(source[i], kv::Part::kShared);
    progress.table.append(source[i]);
  }
  has_room = has_room && take_blocks(progress.table, num_shared + 1, sequence.num_tokens()) && keeps_decode_reserve();
  if (!has_room) {
    pool_.undo_to(mark);
    return false;
  }
  if (last % config_.block_size != 0) copies_.push_back({source[num_shared], progress.table[num_shared]});
  mark_scheduled(sequence, 0, now_ns);
  change(sequence, progress);
  insert_running(sequence);
  return true;
}

Batch Scheduler::build_batch() const {
  Batch batch;
  batch.copies = copies_;
  batch.items.reserve(planned_.size());
  for (const Planned& planned : planned_) {
    const Sequence& sequence = *planned.sequence;
    const RequestState& state = *sequence.request;
    BatchItem& item = batch.items.emplace_back();
    item.sequence = sequence.id;
    item.tokens = sequence.tokens;
    item.num_prompt_tokens = static_cast<uint32_t>(state.request.prompt.size());
    item.begin = planned.begin;
    item.count = planned.count;
    item.blocks = sequence.progress.table.blocks();
    item.samples = planned.samples;
    item.sampling = &sequence.sampling;
    if (planned.samples) item.mask = sequence.mask.get();
    if (sequence.choice == 0 && !state.has_prompt) {
      item.prompt_logprobs = state.request.prompt_logprobs;
      item.pooling = state.request.pooling;
      if (planned.begin > 0) item.pooled = state.pooled;  // a preempted prompt starts again
    }
    batch.num_tokens += planned.count;
  }
  return batch;
}

}  // namespace tandem::sched
