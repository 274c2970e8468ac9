// Scheduler: what a step that ran has changed.

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "serve/sched/scheduler.h"

namespace tandem::sched {

// The commit under way.
struct Scheduler::Commit {
  CommitResult result;
  std::map<RequestId, Update> updates;
  std::set<RequestId> ended;
  int64_t now_ns = 0;

  Update& update_of(const RequestState& state) {
    const auto [it, is_new] = updates.try_emplace(state.id);
    if (is_new) {
      it->second.request = state.id;
      it->second.num_cached_tokens = state.num_cached_tokens;
      it->second.scheduled_ns = state.scheduled_ns;
    }
    return it->second;
  }

  ChoiceDelta& delta_of(const Sequence& sequence) {
    ChoiceDelta& delta = update_of(*sequence.request).deltas.emplace_back();
    delta.choice = sequence.choice;
    return delta;
  }
};

CommitResult Scheduler::commit(StepReport report) {
  TANDEM_CHECK(is_planned_ && report.outcome.items.size() == planned_.size());
  Commit commit;
  commit.now_ns = report.now_ns;
  for (const auto& [state, before] : undo_.first_scheduled) commit.result.started.push_back(state->id);
  end_plan();
  ++counts_.num_steps;
  if (report.seconds > 0) cost_.observe(shape_, report.seconds);

  commit_masks(report.outcome);
  // Errors first: a request that fails gets no token of this step.
  for (size_t i = 0; i < planned_.size(); ++i) {
    RequestState& state = *planned_[i].sequence->request;
    std::optional<Error>& error = report.outcome.items[i].error;
    if (!error || commit.ended.contains(state.id)) continue;
    Update& update = commit.update_of(state);
    update.error = std::move(error);
    for (const auto& sequence : state.choices) finish_sequence(*sequence);
    commit.ended.insert(state.id);
  }
  for (size_t i = 0; i < planned_.size(); ++i) {
    if (commit.ended.contains(planned_[i].sequence->request->id)) continue;
    apply_item(planned_[i], report.outcome.items[i], commit);
  }
  planned_.clear();
  copies_.clear();

  for (auto& [id, update] : commit.updates) {
    if (requests_.at(id)->num_open == 0) {
      update.is_last = true;
      drop_request(id);
    }
    commit.result.updates.push_back(std::move(update));
  }
  return std::move(commit.result);
}

// A grammar may fail at the very token that its own mask let through.
void Scheduler::commit_masks(StepOutcome& outcome) const {
  for (size_t i = 0; i < planned_.size(); ++i) {
    Sequence& sequence = *planned_[i].sequence;
    ItemOutcome& item = outcome.items[i];
    if (!planned_[i].samples || sequence.mask == nullptr || item.error) continue;
    Status committed = sequence.mask->commit(item.token);
    if (!committed) item.error = std::move(committed).error();
  }
}

void Scheduler::apply_item(const Planned& planned, ItemOutcome& outcome, Commit& commit) {
  Sequence& sequence = *planned.sequence;
  RequestState& state = *sequence.request;
  if (sequence.progress.phase == Phase::kFinished) return;  // ended by another item of its request
  TANDEM_CHECK(planned.begin == sequence.progress.num_computed);
  const bool is_decode = sequence.progress.phase == Phase::kDecode;
  if (is_decode) {
    line_.charge(state.request.tenant, 1);
    line_.accept_charges();
  }
  sequence.progress.num_computed += planned.count;
  if (sequence.choice == 0 && !state.has_prompt) {
    if (planned.begin == 0) state.prompt_logprobs.clear();  // a preempted prompt starts again
    std::ranges::move(outcome.prompt_logprobs, std::back_inserter(state.prompt_logprobs));
    state.pooled = std::move(outcome.pooled);
    if (sequence.progress.num_computed >= state.request.prompt.size()) complete_prompt(sequence, commit);
  }
  publish_blocks(sequence);
  if (planned.samples) accept_token(sequence, outcome, commit);
}

void Scheduler::complete_prompt(Sequence& sequence, Commit& commit) {
  RequestState& state = *sequence.request;
  if (!state.has_prompt) {
    const auto num_prompt = static_cast<uint32_t>(state.request.prompt.size());
    commit.result.completed_prompt_tokens += num_prompt;
    commit.result.cached_prompt_tokens += std::min(state.num_cached_tokens, num_prompt);
  }
  state.has_prompt = true;
  if (state.request.prompt_logprobs >= 0) commit.update_of(state).prompt_logprobs = std::move(state.prompt_logprobs);
  if (state.request.pooling != Pooling::kNone) {
    commit.update_of(state).embedding = embedding_of(state.request.pooling, state.request.prompt.size(), state.pooled);
  }
  if (state.end.max_tokens == 0) {
    publish_blocks(sequence);
    for (const auto& choice : state.choices) {
      finish_sequence(*choice);
      commit.delta_of(*choice).finish = Finish{FinishReason::kLength, std::nullopt, false};
    }
    return;
  }
  for (const auto& choice : state.choices) {
    if (choice->progress.phase != Phase::kHeld) continue;
    choice->tokens = state.request.prompt;
    choice->progress.phase = Phase::kWaiting;
    choice->progress.is_at_front = true;
    line_.link(*choice);
  }
}

void Scheduler::accept_token(Sequence& sequence, ItemOutcome& outcome, Commit& commit) {
  line_.unlink(sequence);
  sequence.progress.phase = Phase::kDecode;
  sequence.progress.is_at_front = false;
  sequence.tokens.push_back(outcome.token);
  ++commit.result.num_output_tokens;
  ChoiceDelta& delta = commit.delta_of(sequence);
  delta.tokens.push_back(outcome.token);
  if (outcome.logprob) delta.logprobs.push_back(std::move(*outcome.logprob));
  delta.finish = finish_of(sequence, outcome.token);
  if (delta.finish) {
    const auto num_output = static_cast<double>(sequence.tokens.size() - sequence.request->request.prompt.size());
    mean_output_tokens_ += (mean_output_tokens_ == 0 ? 1 : 0.05) * (num_output - mean_output_tokens_);
    finish_sequence(sequence);
  } else if (!sequence.sampling.banned.empty()) {
    set_banned(sequence);
  }
}

std::optional<Finish> Scheduler::finish_of(Sequence& sequence, TokenId token) {
  const RequestState& state = *sequence.request;
  const auto num_output = static_cast<uint32_t>(sequence.tokens.size() - state.request.prompt.size());
  return state.end.finish_of(token, num_output, sequence.stop_rule.get(), sequence.mask.get());
}

// Full blocks become findable now that the step which filled them has run.
void Scheduler::publish_blocks(Sequence& sequence) {
  if (!config_.enable_prefix_caching) return;
  Progress& progress = sequence.progress;
  const uint32_t num_full = progress.num_computed / config_.block_size;
  bool has_restarted = false;
  while (progress.num_published < num_full) {
    const uint32_t i = progress.num_published;
    const auto tokens = std::span(sequence.tokens).subspan(size_t{i} * config_.block_size, config_.block_size);
    const auto node =
        pool_.publish(progress.published_node, sequence.request->request.cache_salt, tokens, progress.table[i]);
    if (node) {
      progress.published_node = *node;
      ++progress.num_published;
      continue;
    }
    // The chain led through a twin that another sequence had published and that is evicted by now: begin again,
    // with our own blocks where the index has none.
    TANDEM_CHECK(!has_restarted);
    has_restarted = true;
    progress.num_published = 0;
    progress.published_node = kv::kRootNode;
  }
}

}  // namespace tandem::sched
