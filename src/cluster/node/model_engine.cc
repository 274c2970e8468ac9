#include "cluster/node/model_engine.h"

#include <algorithm>

#include "serve/engine/step_isolation.h"

namespace tandem::node {

using handoff::Finish;

namespace {
constexpr double kUnknownStep_s = 1;
constexpr int64_t kLongestMaskWait_ns = 10'000'000'000;
}  // namespace

ModelEngine::ModelEngine(ModelEngineConfig config, sched::StepExecutor& executor, const Clock& clock,
                         StopRuleMaker make_stop_rule)
    : config_(std::move(config)), executor_(executor), clock_(clock), make_stop_rule_(std::move(make_stop_rule)) {}

PrefillRank ModelEngine::rank_of(const role::StartPrefill& start) {
  const handoff::RequestState& state = start.state;
  const bool is_new = std::ranges::all_of(state.choices, [](const auto& choice) { return choice.tokens.empty(); });
  const int64_t key_ns = sched::line_key_ns(config_.line, clock_.now_ns(), state.prompt.size(), start.priority);
  return {is_new, is_new ? key_ns : 0, next_arrival_++};
}

std::vector<EngineChoice> ModelEngine::make_choices(const handoff::RequestState& state, const role::KvTables& tables,
                                                    const sched::EndRule& end) const {
  std::vector<EngineChoice> choices;
  const ChoiceMasks make_mask = masks_of(state, config_.make_masks);
  for (uint32_t c = 0; c < state.choices.size(); ++c) {
    ChoiceRules rules{make_stop_rule_(state), nullptr};
    if (make_mask && !state.choices[c].is_finished) rules.mask = make_mask();
    choices.push_back(make_choice(state, tables, c, end, std::move(rules)));
  }
  return choices;
}

void ModelEngine::start_prefill(role::StartPrefill start) {
  PrefillJob job;
  job.attempt = start.attempt;
  job.rank = rank_of(start);
  ++num_started_;
  job.shape = handoff::shape_of(start.state, config_.block_size, config_.num_layer_groups);
  job.end = end_rule_of(start.state, config_.eos_ids);
  job.num_cached = std::min(start.computed[0], static_cast<uint32_t>(start.state.prompt.size()));
  job.choices = make_choices(start.state, start.tables, job.end);
  for (uint32_t c = 0; c < job.choices.size(); ++c) {
    EngineChoice& choice = job.choices[c];
    // The last position gives the logits, cached or not.
    if (!choice.is_finished) choice.num_computed = std::min(start.computed[c], job.shape.num_positions(c) - 1);
  }
  job.reading = prompt_reading_of(start.state);
  job.first.resize(job.choices.size());
  job.is_reported.assign(job.shape.num_blocks(), 0);
  prefills_.insert_or_assign(start.request, std::move(job));
}

void ModelEngine::start_decode(role::StartDecode start) {
  DecodeJob job;
  ++num_started_;
  job.end = end_rule_of(start.state, config_.eos_ids);
  job.choices = make_choices(start.state, start.tables, job.end);
  for (EngineChoice& choice : job.choices) choice.num_computed = static_cast<uint32_t>(choice.tokens.size()) - 1;
  decodes_.insert_or_assign(start.request, std::move(job));
}

void ModelEngine::extend(const role::ExtendTable& extension) {
  const auto it = decodes_.find(extension.request);
  if (it != decodes_.end()) it->second.choices[extension.choice].blocks.push_back(extension.block);
}

void ModelEngine::add_item(Step& step, const Id& id, EngineChoice& choice, uint32_t index, bool is_decode,
                           uint32_t count) {
  sched::BatchItem item;
  item.sequence = static_cast<sched::SequenceId>(step.planned.size());
  item.tokens = choice.tokens;
  item.num_prompt_tokens = choice.num_prompt;
  item.begin = choice.num_computed;
  item.count = count;
  item.blocks = choice.blocks;
  item.samples = item.begin + count == choice.tokens.size();
  item.sampling = &choice.sampling;
  if (item.samples) item.mask = choice.mask.get();
  step.batch.items.push_back(item);
  step.batch.num_tokens += count;
  step.planned.push_back({id, index, is_decode});
  step.requests.insert(id);
}

// All of a request's choices or none, in turns when there are more than fit.
void ModelEngine::plan_decodes(Step& step) {
  // One item stays free for prompts: decodes that fill every step would keep them out.
  const size_t max_items = std::max<size_t>(config_.max_sequences - (prefills_.empty() ? 0 : 1), 1);
  auto it = decodes_.upper_bound(last_decode_);
  for (size_t i = 0; i < decodes_.size(); ++i, ++it) {
    if (it == decodes_.end()) it = decodes_.begin();
    if (&step != &step_ && is_in_step(it->first)) continue;
    DecodeJob& job = it->second;
    const auto is_open = [](const EngineChoice& choice) { return !choice.is_finished; };
    const auto num_open = static_cast<size_t>(std::ranges::count_if(job.choices, is_open));
    if (!step.batch.items.empty() && step.batch.items.size() + num_open > max_items) return;
    const auto is_unready = [](const EngineChoice& choice) { return !choice.is_finished && !choice.is_mask_ready(); };
    if (std::ranges::any_of(job.choices, is_unready)) {
      waits_for_masks_ = true;
      continue;
    }
    // Its table has not grown yet: the node is slower than the engine. Others go on.
    const auto lacks_room = [this](const EngineChoice& choice) {
      return !choice.is_finished && choice.blocks.size() * config_.block_size <= choice.num_computed;
    };
    if (std::ranges::any_of(job.choices, lacks_room)) continue;
    for (uint32_t c = 0; c < job.choices.size(); ++c) {
      if (job.choices[c].is_finished) continue;
      step.shape.add_decode(job.choices[c].num_computed);
      add_item(step, it->first, job.choices[c], c, true, 1);
    }
    last_decode_ = it->first;
  }
}

// How many tokens of the choice go into this step. The prompt's full blocks are computed once, by the first choice that
// goes on; the others begin behind them, in a later step than the one that computes them.
uint32_t ModelEngine::plan_choice(Step& step, const Id& id, PrefillJob& job, uint32_t index) {
  EngineChoice& choice = job.choices[index];
  const auto num_left = static_cast<uint32_t>(choice.tokens.size()) - choice.num_computed;
  if (choice.is_finished || num_left == 0 || step.batch.items.size() >= config_.max_sequences) return 0;
  uint32_t count = config_.budget.chunk(step.shape, cost_, {choice.num_computed, num_left, false});
  if (count == num_left && !choice.is_mask_ready()) {
    waits_for_masks_ = true;
    --count;  // all but what gives the logits
  }
  if (count == 0) return 0;
  step.shape.add_prefill(choice.num_computed, count);
  add_item(step, id, choice, index, false, count);
  if (index == 0) ask_for(job.reading, step.batch.items.back());
  return count;
}

void ModelEngine::plan_prefills(Step& step) {
  std::vector<std::pair<PrefillRank, Id>> order;
  for (const auto& [id, job] : prefills_) {
    if (&step == &step_ || may_nest(id, job)) order.emplace_back(job.rank, id);
  }
  std::ranges::sort(order);
  for (const auto& [rank, id] : order) {
    PrefillJob& job = prefills_.at(id);
    const auto leader = std::ranges::find_if(job.choices, [](const EngineChoice& c) { return !c.is_finished; });
    if (leader == job.choices.end()) continue;
    const uint32_t shared_end = job.shape.num_shared() * config_.block_size;
    const uint32_t num_shared_computed = std::min(leader->num_computed, shared_end);
    const auto first = static_cast<uint32_t>(leader - job.choices.begin());
    plan_choice(step, id, job, first);
    if (num_shared_computed < shared_end) continue;
    for (uint32_t c = first + 1; c < job.choices.size(); ++c) {
      EngineChoice& choice = job.choices[c];
      const auto last = static_cast<uint32_t>(choice.tokens.size()) - 1;
      if (!choice.is_finished) choice.num_computed = std::max(choice.num_computed, std::min(shared_end, last));
      plan_choice(step, id, job, c);
    }
  }
}

sched::StepOutcome ModelEngine::execute(const sched::Batch& batch, bool is_observed) {
  const auto is_whole = [&batch](Result<sched::StepOutcome>& outcome) {
    return outcome && outcome->items.size() == batch.items.size();
  };
  auto outcome = is_observed ? executor_.execute_observed(batch, *this) : executor_.execute(batch);
  if (is_whole(outcome)) return std::move(*outcome);
  Lock lock(rewrite_mutex_);
  outcome = executor_.execute(batch);
  if (is_whole(outcome)) return std::move(*outcome);
  return engine::execute_isolated(executor_, batch);
}

handoff::TokenEntry ModelEngine::entry_of(const Id& id, uint32_t choice, const EngineChoice& state,
                                          sched::ItemOutcome& outcome) const {
  handoff::TokenEntry entry;
  entry.request = id;
  entry.choice = choice;
  entry.index = state.num_emitted();
  entry.token = outcome.token;
  if (outcome.logprob) {
    entry.logprob = outcome.logprob->logprob;
    entry.rank = outcome.logprob->rank;
    entry.top = std::move(outcome.logprob->top);
  }
  return entry;
}

void ModelEngine::fail(Step& step, const Id& id, Error error) {
  for (const role::JobFailed& failure : step.failures) {
    if (failure.request == id) return;
  }
  step.failures.push_back({id, error.code, std::move(error.message)});
}

void ModelEngine::apply(Step& step, const Planned& planned, const sched::BatchItem& item,
                        sched::ItemOutcome& outcome) {
  if (!outcome.error && item.mask != nullptr) {
    Status committed = item.mask->commit(outcome.token);
    if (!committed) outcome.error = std::move(committed).error();
  }
  if (outcome.error) return fail(step, planned.request, std::move(*outcome.error));
  if (planned.is_decode) {
    DecodeJob& job = decodes_.at(planned.request);
    EngineChoice& choice = job.choices[planned.choice];
    handoff::TokenEntry entry = entry_of(planned.request, planned.choice, choice, outcome);
    choice.num_computed += item.count;
    entry.finish = accept_token(choice, job.end, outcome.token);
    role::StepTokens& tokens = step.tokens[planned.request];
    tokens.request = planned.request;
    tokens.began_at = step.began_ns;
    tokens.tokens.push_back(std::move(entry));
    return;
  }
  PrefillJob& job = prefills_.at(planned.request);
  EngineChoice& choice = job.choices[planned.choice];
  choice.num_computed += item.count;
  if (job.began_at == 0) job.began_at = step.began_ns;
  if (planned.choice == 0) take_from(outcome, job.reading);
  if (!item.samples) return;
  handoff::TokenEntry entry = entry_of(planned.request, planned.choice, choice, outcome);
  entry.finish = accept_token(choice, job.end, outcome.token);
  if (entry.index == 0) entry.num_cached = job.num_cached;
  if (planned.choice == 0) give_to(entry, choice.num_prompt, job.reading);
  // The job keeps the tokens whose KV it has; it is the target that goes on from the new one.
  choice.tokens.pop_back();
  choice.is_finished = false;
  job.first[planned.choice] = std::move(entry);
}

// What will be computed at the end of the step.
std::vector<role::PartsComputed> ModelEngine::parts_of(const Step& step) const {
  std::map<std::pair<Id, uint32_t>, uint32_t> ends;
  for (size_t i = 0; i < step.planned.size(); ++i) {
    if (step.planned[i].is_decode) continue;
    ends[{step.planned[i].request, step.planned[i].choice}] = step.batch.items[i].begin + step.batch.items[i].count;
  }
  std::vector<role::PartsComputed> parts;
  for (const auto& [id, job] : prefills_) {
    if (&step != &step_ && !step.requests.contains(id)) continue;
    std::vector<uint32_t> num_computed;
    for (uint32_t c = 0; c < job.choices.size(); ++c) {
      const auto it = ends.find({id, c});
      num_computed.push_back(it == ends.end() ? job.choices[c].num_computed : it->second);
    }
    std::vector<uint32_t> blocks = unreported_blocks(job, num_computed);
    if (!blocks.empty()) parts.push_back({id, job.attempt, 0, std::move(blocks)});
  }
  return parts;
}

void ModelEngine::on_layers_written(uint32_t num_layers) {
  const bool tells = config_.layers_per_group > 0 && !step_.coming.empty();
  while (tells && step_.num_groups_told < config_.num_layer_groups &&
         (step_.num_groups_told + 1) * config_.layers_per_group <= num_layers) {
    for (role::PartsComputed& parts : step_.coming) parts.layer_group = step_.num_groups_told;
    host_->on_early_news({step_.coming.begin(), step_.coming.end()});
    ++step_.num_groups_told;
  }
  if (config_.nested_tokens == 0 || !executor_.nests_steps()) return;
  host_->at_boundary();
  if (is_nested_due()) run_nested();
}

bool ModelEngine::may_nest(const Id& id, const PrefillJob& job) const {
  if (is_in_step(id)) return false;
  uint32_t num_left = 0;
  for (const EngineChoice& choice : job.choices) {
    if (!choice.is_finished) num_left += static_cast<uint32_t>(choice.tokens.size()) - choice.num_computed;
  }
  return num_left <= config_.nested_tokens;
}

bool ModelEngine::is_nested_due() const {
  const bool is_any_new = num_started_ != num_started_nested_;
  const double target_s = config_.budget.target_s;
  return is_any_new ||
         (target_s > 0 && static_cast<double>(clock_.now_ns() - nested_began_ns_) * 1e-9 >= target_s);
}

// Short work beside the step under way, which is between two layers.
void ModelEngine::run_nested() {
  num_started_nested_ = num_started_;
  const int64_t began_ns = nested_began_ns_ = clock_.now_ns();
  Step nested;
  nested.began_ns = began_ns;
  plan_decodes(nested);
  plan_prefills(nested);
  if (nested.batch.items.empty()) return;
  nested.coming = parts_of(nested);
  const auto predicted_ms = static_cast<uint32_t>(cost_.predict(nested.shape) * 1e3);
  step_predicted_ms_.fetch_add(predicted_ms, std::memory_order_relaxed);
  sched::StepOutcome outcome = execute(nested.batch, false);
  num_steps_.fetch_add(1, std::memory_order_relaxed);
  const int64_t took_ns = clock_.now_ns() - began_ns;
  nested_ns_ += took_ns;
  cost_.observe(nested.shape, static_cast<double>(took_ns) * 1e-9);
  host_->on_early_news(finish(nested, outcome));
}

void ModelEngine::report_prefills(Step& step, std::vector<role::EngineNews>& news) {
  for (role::PartsComputed& parts : step.coming) {
    const auto it = prefills_.find(parts.request);
    if (it == prefills_.end()) continue;  // has failed
    for (const uint32_t block : parts.blocks) it->second.is_reported[block] = 1;
    for (uint32_t group = step.num_groups_told; group < config_.num_layer_groups; ++group) {
      parts.layer_group = group;
      news.emplace_back(parts);
    }
  }
  std::vector<Id> done;
  for (auto& [id, job] : prefills_) {
    if (!step.requests.contains(id)) continue;
    role::Sampled sampled{id, job.attempt, {}, job.began_at, clock_.now_ns()};
    bool is_done = true;
    for (uint32_t c = 0; c < job.choices.size(); ++c) {
      if (job.choices[c].is_finished) continue;
      is_done &= job.first[c].has_value();
      if (job.first[c]) sampled.first.push_back(*job.first[c]);
    }
    if (!is_done) continue;
    news.emplace_back(std::move(sampled));
    done.push_back(id);
  }
  for (const Id& id : done) prefills_.erase(id);
}

std::vector<role::EngineNews> ModelEngine::finish(Step& step, sched::StepOutcome& outcome) {
  for (size_t i = 0; i < step.planned.size(); ++i) {
    apply(step, step.planned[i], step.batch.items[i], outcome.items[i]);
  }
  std::vector<role::EngineNews> news;
  for (role::JobFailed& failure : step.failures) {
    step.tokens.erase(failure.request);
    prefills_.erase(failure.request);
    decodes_.erase(failure.request);
    news.emplace_back(std::move(failure));
  }
  for (auto& [id, tokens] : step.tokens) {
    news.emplace_back(std::move(tokens));
    const DecodeJob& job = decodes_.at(id);
    if (std::ranges::all_of(job.choices, [](const EngineChoice& choice) { return choice.is_finished; })) {
      decodes_.erase(id);
    }
  }
  report_prefills(step, news);
  return news;
}

std::vector<role::EngineNews> ModelEngine::run_step(StepHost* host) {
  step_ = {};
  waits_for_masks_ = false;
  plan_decodes(step_);
  plan_prefills(step_);
  if (step_.batch.items.empty()) {
    const bool is_new = waits_for_masks() && waits_since_ns_.load(std::memory_order_relaxed) == kNoStep;
    if (is_new) waits_since_ns_.store(clock_.now_ns(), std::memory_order_release);
    if (!waits_for_masks()) waits_since_ns_.store(kNoStep, std::memory_order_release);
    return {};
  }
  waits_since_ns_.store(kNoStep, std::memory_order_release);
  step_.coming = parts_of(step_);
  for (const role::PartsComputed& parts : step_.coming) step_.requests.insert(parts.request);
  host_ = host;
  num_started_nested_ = num_started_;
  nested_ns_ = 0;

  const int64_t began_ns = nested_began_ns_ = step_.began_ns = clock_.now_ns();
  // Too little is known at first: nobody shall take a slow step for a stuck engine.
  const double predicted_s = std::max(cost_.predict(step_.shape), cost_.is_ready() ? 0.0 : kUnknownStep_s);
  step_predicted_ms_.store(static_cast<uint32_t>(predicted_s * 1e3), std::memory_order_relaxed);
  step_began_ns_.store(began_ns, std::memory_order_release);
  const bool has_prompts = std::ranges::any_of(step_.planned, [](const Planned& item) { return !item.is_decode; });
  sched::StepOutcome outcome = execute(step_.batch, host != nullptr && has_prompts);
  step_began_ns_.store(kNoStep, std::memory_order_release);
  num_steps_.fetch_add(1, std::memory_order_relaxed);
  cost_.observe(step_.shape, static_cast<double>(clock_.now_ns() - began_ns - nested_ns_) * 1e-9);
  std::vector<role::EngineNews> news = finish(step_, outcome);
  step_ = {};
  return news;
}

role::EngineProgress ModelEngine::progress() const {
  const int64_t began_ns = step_began_ns_.load(std::memory_order_acquire);
  // An engine that waits for a grammar gets on, as one in a step does. Never so long that it is called stuck: all that
  // others have here would be lost with it, and then at the next node, which compiles the same. The request alone goes
  // on elsewhere when the wait is too long.
  const int64_t waits_ns = waits_since_ns_.load(std::memory_order_acquire);
  int64_t running_ns = began_ns == kNoStep ? 0 : clock_.now_ns() - began_ns;
  const bool waits = waits_ns != kNoStep && clock_.now_ns() - waits_ns < kLongestMaskWait_ns;
  if (began_ns == kNoStep && waits) running_ns = 1'000'000;
  return {num_steps_.load(std::memory_order_relaxed), static_cast<uint32_t>(running_ns / 1'000'000),
          step_predicted_ms_.load(std::memory_order_relaxed)};
}

}  // namespace tandem::node
