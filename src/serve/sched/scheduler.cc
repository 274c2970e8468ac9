#include "serve/sched/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::sched {
namespace {

SchedulerConfig normalised(SchedulerConfig config) {
  config.max_num_seqs = std::max(config.max_num_seqs, 1u);
  config.max_num_batched_tokens = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  config.num_private_blocks = std::min(config.num_private_blocks, config.num_blocks);
  config.min_chunk = std::max(config.min_chunk, 1u);
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(normalised(config)),
      admission_(config_),
      window_{static_cast<int64_t>(config_.window_ms * 1e6)},
      budget_{config_.max_num_batched_tokens, config_.tpot_target_ms * 1e-3, config_.min_chunk},
      pool_({config_.num_blocks, config_.num_private_blocks, config_.block_size, config_.prefix_hash_mask}),
      line_(config_.tenant_weights, config_.max_num_batched_tokens) {}

Scheduler::~Scheduler() = default;

std::unique_ptr<Sequence> Scheduler::make_sequence(RequestState& state, uint32_t choice) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = SequenceId{next_sequence_id_++};
  sequence->request = &state;
  sequence->choice = choice;
  sequence->line_key_ns = line_key_ns(config_.line, state.arrival_ns, state.request.prompt.size(),
                                      state.request.priority);
  sequence->sampling = state.request.sampling;
  sequence->sampling.choice = choice;
  if (state.request.make_stop_rule) sequence->stop_rule = state.request.make_stop_rule();
  if (state.request.make_token_mask) sequence->mask = state.request.make_token_mask();
  if (choice == 0) {
    sequence->tokens = state.request.prompt;
  } else {
    sequence->progress.phase = Phase::kHeld;
  }
  set_banned(*sequence);
  return sequence;
}

// Until min_tokens are out, what would end the sequence cannot be sampled.
void Scheduler::set_banned(Sequence& sequence) const {
  const RequestState& state = *sequence.request;
  const size_t num_output = sequence.tokens.size() - std::min(sequence.tokens.size(), state.request.prompt.size());
  sequence.sampling.banned = state.end.banned_after(num_output);
}

void Scheduler::add(RequestId id, Request request, int64_t now_ns) {
  TANDEM_CHECK(!is_planned_ && !requests_.contains(id));
  TANDEM_CHECK(static_cast<bool>(admission_.check_fits(request)));
  auto state = std::make_unique<RequestState>();
  state->id = id;
  state->request = std::move(request);
  state->arrival_index = next_arrival_index_++;
  state->arrival_ns = now_ns;
  const Request& added = state->request;
  state->end = {sorted_stop_ids(added.stop_token_ids, config_.eos_ids, added.ignore_eos && !added.make_token_mask),
                added.sampling.banned, added.min_tokens, admission_.max_output(added)};
  state->num_open = state->request.num_choices;
  if (state->request.deadline_ns != 0) deadlines_.emplace(state->request.deadline_ns, id);
  line_.enter(state->request.tenant);
  for (uint32_t choice = 0; choice < state->request.num_choices; ++choice) {
    state->choices.push_back(make_sequence(*state, choice));
    line_.link(*state->choices.back());
  }
  requests_.emplace(id, std::move(state));
}

void Scheduler::insert_running(Sequence& sequence) {
  running_.insert(std::ranges::upper_bound(running_, &sequence, RankOrder{}), &sequence);
}

void Scheduler::finish_sequence(Sequence& sequence) {
  if (sequence.progress.phase == Phase::kFinished) return;
  line_.unlink(sequence);
  pool_.release_all(sequence.progress.table.blocks());
  sequence.progress = Progress{};
  sequence.progress.phase = Phase::kFinished;
  std::erase(running_, &sequence);
  TANDEM_CHECK(sequence.request->num_open > 0);
  --sequence.request->num_open;
}

// Frees all the request holds; the caller drops it after.
Update Scheduler::end_request(RequestState& state) {
  Update update;
  update.request = state.id;
  update.is_last = true;
  update.num_cached_tokens = state.num_cached_tokens;
  update.scheduled_ns = state.scheduled_ns;
  for (const auto& sequence : state.choices) finish_sequence(*sequence);
  return update;
}

void Scheduler::drop_request(RequestId id) {
  const auto found = requests_.find(id);
  line_.leave(found->second->request.tenant);
  deadlines_.erase({found->second->request.deadline_ns, id});
  requests_.erase(found);
}

std::optional<Update> Scheduler::cancel(RequestId id) {
  TANDEM_CHECK(!is_planned_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return std::nullopt;
  std::vector<ChoiceDelta> deltas;
  for (const auto& sequence : found->second->choices) {
    if (sequence->progress.phase == Phase::kFinished) continue;
    ChoiceDelta& delta = deltas.emplace_back();
    delta.choice = sequence->choice;
    delta.finish = Finish{FinishReason::kCancelled, std::nullopt, false};
  }
  Update update = end_request(*found->second);
  update.deltas = std::move(deltas);
  drop_request(id);
  return update;
}

std::optional<Update> Scheduler::fail(RequestId id, Error error) {
  TANDEM_CHECK(!is_planned_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return std::nullopt;
  Update update = end_request(*found->second);
  update.error = std::move(error);
  drop_request(id);
  return update;
}

std::vector<Update> Scheduler::expire(int64_t now_ns) {
  std::vector<Update> updates;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    updates.push_back(*fail(deadlines_.begin()->second, {ErrorCode::kDeadline, "the request's deadline has passed"}));
  }
  std::vector<RequestId> hopeless;
  for (const auto& [deadline_ns, id] : deadlines_) {
    if (is_hopeless(*requests_.at(id), now_ns)) hopeless.push_back(id);
  }
  for (const RequestId id : hopeless) {
    mean_output_tokens_ *= 0.9;  // what it was judged by: were that wrong, nobody would be left to show it
    updates.push_back(*fail(id, {ErrorCode::kDeadline, "the request waited so long that its deadline cannot be met"}));
  }
  return updates;
}

// Also when it went first, and said no more than most do. One that is alone costs nobody a step, and shows how long
// steps take now.
bool Scheduler::is_hopeless(const RequestState& state, int64_t now_ns) const {
  constexpr double kBenefitOfDoubt = 0.8;  // of predictions
  if (state.scheduled_ns != 0 || requests_.size() == 1 || !cost_.is_ready()) return false;
  const double left_s = static_cast<double>(state.request.deadline_ns - now_ns) * 1e-9;
  const double output = std::min<double>(state.end.max_tokens, mean_output_tokens_);
  cost::StepShape decode;
  decode.add_decode(state.request.prompt.size());
  const double decode_s = output * cost_.predict(decode);
  const auto needs = [&](uint64_t num_cached) {
    cost::StepShape prefill;
    prefill.add_prefill(num_cached, state.request.prompt.size() - num_cached);
    return kBenefitOfDoubt * (cost_.predict(prefill) + decode_s);
  };
  if (needs(0) <= left_s) return false;
  const Sequence& first = *state.choices[0];
  return needs(match_prefix(first).blocks.size() * config_.block_size) > left_s;
}

std::optional<RequestId> Scheduler::first_waiting() const {
  for (const auto& [id, state] : requests_) {
    for (const auto& sequence : state->choices) {
      if (sequence->progress.phase == Phase::kWaiting) return id;
    }
  }
  return std::nullopt;
}

bool Scheduler::preempt_one() {
  TANDEM_CHECK(!is_planned_);
  if (running_.empty()) return false;
  begin_plan();
  preempt(*running_.back());
  end_plan();
  return true;
}

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts counts = counts_;
  counts.num_running = static_cast<uint32_t>(running_.size());
  counts.num_waiting = line_.num_waiting();
  counts.num_waiting_tokens = line_.num_waiting_tokens();
  return counts;
}

double Scheduler::seconds_per_prefill_token() const {
  if (!cost_.is_ready()) return 0;
  cost::StepShape shape;
  shape.num_decode_rows = shape_.num_decode_rows;
  shape.decode_attended = shape_.decode_attended;
  const uint32_t chunk = budget_.chunk(shape, cost_, {0, config_.max_num_batched_tokens, line_.num_tenants() > 1});
  if (chunk == 0) return 0;
  shape.add_prefill(0, chunk);
  return cost_.predict(shape) / chunk;
}

void Scheduler::check_invariants() const {
  TANDEM_CHECK(!is_planned_);
  std::vector<uint32_t> owners(pool_.num_blocks());
  size_t num_running = 0;
  uint32_t num_waiting = 0;
  for (const auto& [id, state] : requests_) {
    uint32_t num_open = 0;
    for (const auto& sequence : state->choices) {
      const Progress& progress = sequence->progress;
      const bool is_running = progress.phase == Phase::kPrefill || progress.phase == Phase::kDecode;
      num_open += progress.phase != Phase::kFinished;
      num_running += is_running;
      num_waiting += progress.phase == Phase::kWaiting;
      TANDEM_CHECK(is_running || (progress.table.size() == 0 && progress.num_computed == 0));
      if (!is_running) continue;
      TANDEM_CHECK(progress.num_computed < sequence->num_tokens());
      TANDEM_CHECK((progress.num_computed + 1 == sequence->num_tokens()) || progress.phase == Phase::kPrefill);
      TANDEM_CHECK(progress.table.size() >= kv::blocks_for(progress.num_computed, config_.block_size));
      for (uint32_t i = 0; i < progress.table.size(); ++i) {
        const kv::BlockId block = progress.table[i];
        ++owners[kv::index(block)];
        if (!pool_.prefix_index().contains(block)) continue;
        // Whatever can be found is computed, full, and what the index says it is.
        TANDEM_CHECK((i + 1) * config_.block_size <= progress.num_computed);
        TANDEM_CHECK(std::ranges::equal(pool_.prefix_index().tokens(block),
                                        std::span(sequence->tokens).subspan(i * config_.block_size,
                                                                            config_.block_size)));
      }
    }
    TANDEM_CHECK(num_open == state->num_open && num_open > 0);
  }
  TANDEM_CHECK(num_running == running_.size() && num_waiting == line_.num_waiting());
  TANDEM_CHECK(std::ranges::is_sorted(running_, RankOrder{}));
  TANDEM_CHECK(running_.size() <= config_.max_num_seqs);
  pool_.check_invariants(owners);
}

std::string Scheduler::dump() const {
  const SchedulerCounts now = counts();
  std::string text = "sched: steps=" + std::to_string(now.num_steps) + " running=" + std::to_string(now.num_running) +
                     " waiting=" + std::to_string(now.num_waiting) +
                     " preemptions=" + std::to_string(now.num_preemptions) +
                     " prefix=" + std::to_string(now.prefix_hits_tokens) + "/" +
                     std::to_string(now.prefix_queries_tokens) +
                     " recomputed=" + std::to_string(now.num_recomputed_tokens) + "\n";
  for (const auto& [id, state] : requests_) {
    text += "  request " + std::to_string(static_cast<uint64_t>(id)) + " arrival=" +
            std::to_string(state->arrival_ns) + " priority=" + std::to_string(state->request.priority) +
            " scheduled=" + std::to_string(state->scheduled_ns) + " cached=" +
            std::to_string(state->num_cached_tokens) + "\n";
    for (const auto& sequence : state->choices) {
      const Progress& progress = sequence->progress;
      text += "    sequence " + std::to_string(static_cast<uint64_t>(sequence->id)) + " choice=" +
              std::to_string(sequence->choice) + " " + name_of(progress.phase) +
              (progress.is_at_front ? " front" : "") + " tokens=" + std::to_string(sequence->num_tokens()) +
              " computed=" + std::to_string(progress.num_computed) +
              " published=" + std::to_string(progress.num_published) + " blocks:";
      for (const kv::BlockId block : progress.table.blocks()) text += " " + std::to_string(kv::index(block));
      text += "\n";
    }
  }
  text += "  running:";
  for (const Sequence* sequence : running_) text += " " + std::to_string(static_cast<uint64_t>(sequence->id));
  return text + "\n" + line_.dump() + cost_.dump() + pool_.dump();
}

}  // namespace tandem::sched
