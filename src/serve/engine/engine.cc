#include "serve/engine/engine.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "serve/engine/step_isolation.h"

namespace tandem::engine {
namespace {

constexpr size_t kMailboxLimit = 1 << 16;
constexpr double kIdleWaitS = 1.0;
constexpr double kDumpWaitS = 5.0;

std::string number(sched::RequestId id) { return std::to_string(static_cast<uint64_t>(id)); }

}  // namespace

struct Engine::Thread {
  std::thread thread;
};

// A dump is asked for by raising `wanted`, and answered by the engine thread between two turns.
struct Engine::DumpSlot {
  std::atomic<uint64_t> wanted{0};
  Mutex mutex;
  CondVar answered;
  uint64_t num_answered GUARDED_BY(mutex) = 0;
  std::string text GUARDED_BY(mutex);
};

Engine::Engine(const EngineConfig& config, sched::StepExecutor& executor, const Clock& clock, MetricRegistry& metrics)
    : config_(config),
      executor_(executor),
      clock_(clock),
      gate_(config.sched),
      mailbox_(kMailboxLimit),
      dump_slot_(std::make_unique<DumpSlot>()),
      metrics_(metrics, config.model_name, config.sched),
      scheduler_(config.sched) {
  update_levels();
}

Engine::~Engine() { stop(); }

Status Engine::check(const sched::Request& request) const {
  const auto is_bad = [this](TokenId token) { return token < 0 || static_cast<uint32_t>(token) >= config_.vocab_size; };
  if (const auto bad = std::ranges::find_if(request.prompt, is_bad); bad != request.prompt.end()) {
    return Error{ErrorCode::kInvalidArgument, "token id " + std::to_string(*bad) + " is outside the vocabulary of " +
                                                  std::to_string(config_.vocab_size)};
  }
  if (request.num_choices > config_.max_choices) {
    return Error{ErrorCode::kInvalidArgument, "n is " + std::to_string(request.num_choices) + ", at most " +
                                                  std::to_string(config_.max_choices) + " is allowed"};
  }
  if (request.grammar && !request.make_token_mask) {
    return Error{ErrorCode::kInvalidArgument, "a grammar without its masks would not be kept to"};
  }
  const int32_t num_logprobs = std::max(request.sampling.num_logprobs, request.prompt_logprobs);
  if (num_logprobs > 0 && static_cast<uint32_t>(num_logprobs) > config_.max_logprobs) {
    return Error{ErrorCode::kInvalidArgument, std::to_string(num_logprobs) + " logprobs are asked for, at most " +
                                                  std::to_string(config_.max_logprobs) + " are allowed"};
  }
  return Done{};
}

Result<sched::RequestId> Engine::submit(sched::Request request, std::shared_ptr<sched::TokenSink> sink) {
  TRY(check(request));
  const int64_t now_ns = clock_.now_ns();
  auto id = gate_.enter(request, now_ns);
  if (!id) {
    metrics_.reject();
    return std::move(id).error();
  }
  if (!mailbox_.try_push({*id, std::move(request), std::move(sink), now_ns})) {
    gate_.end(*id);
    metrics_.reject();
    return Error{ErrorCode::kUnavailable, "the engine takes no requests"};
  }
  return *id;
}

Status Engine::check_room(const std::string& tenant) {
  Status room = gate_.check_room(tenant);
  if (!room) metrics_.reject();
  return room;
}

void Engine::cancel(sched::RequestId request) {
  if (gate_.cancel(request)) mailbox_.wake();
}

bool Engine::reset_prefix_cache() {
  drops_cache_.store(true);
  mailbox_.wake();
  return true;
}

GeneratorLimits Engine::limits() const {
  GeneratorLimits limits{scheduler_.admission().max_sequence_tokens(), config_.vocab_size, config_.max_logprobs,
                         config_.max_choices};
  limits.max_waiting = gate_.max_waiting();
  limits.max_waiting_tokens = gate_.max_waiting_tokens();
  return limits;
}

GeneratorLoad Engine::load() const {
  return {num_running_.load(std::memory_order_relaxed), gate_.num_queued(), kv_usage_.load(std::memory_order_relaxed),
          gate_.retry_after_s()};
}

void Engine::start() {
  TANDEM_CHECK(!thread_);
  thread_ = std::make_unique<Thread>();
  thread_->thread = std::thread([this] { run(); });
}

void Engine::begin_drain() { gate_.close(); }

bool Engine::wait_idle(double timeout_s) const { return gate_.wait_empty(timeout_s); }

void Engine::stop() {
  gate_.close();
  mailbox_.close();
  is_stopping_.store(true);
  if (thread_) {
    if (thread_->thread.joinable()) thread_->thread.join();
  } else {
    end_all();
  }
}

void Engine::run() {
  while (!is_stopping_.load()) {
    if (run_once()) continue;
    auto arrivals = mailbox_.wait_drain(kIdleWaitS);
    std::ranges::move(arrivals, std::back_inserter(inbox_));
  }
  end_all();
}

bool Engine::run_once() {
  answer_dump();
  take_arrivals();
  if (drops_cache_.exchange(false)) {  // after the mailbox: who was submitted later than the reset finds nothing
    scheduler_.pool().drop_cache();
    is_checked_ = false;
  }
  for (sched::Update& update : scheduler_.expire(clock_.now_ns())) publish(std::move(update));
  if (scheduler_.is_idle()) {
    check_idle();
    return false;
  }
  is_checked_ = false;
  const sched::Batch batch = scheduler_.plan_step(clock_.now_ns());
  if (batch.items.empty()) {
    fail_stuck();
  } else {
    run_batch(batch);
  }
  update_levels();
  return true;
}

// The cancellations are taken before the mailbox is drained: a request is in the mailbox before anyone can cancel it.
void Engine::take_arrivals() {
  const std::vector<sched::RequestId> cancelled = gate_.take_cancelled();
  auto drained = mailbox_.drain();
  std::ranges::move(drained, std::back_inserter(inbox_));
  for (Arrival& arrival : inbox_) {
    open_.emplace(arrival.id, Open{std::move(arrival.sink), {arrival.arrival_ns}});
    scheduler_.add(arrival.id, std::move(arrival.request), arrival.arrival_ns);
  }
  inbox_.clear();
  for (const sched::RequestId id : cancelled) {
    if (auto update = scheduler_.cancel(id)) publish(std::move(*update));
  }
}

// Once whenever work runs out: nothing may be left in the pool but cached blocks.
void Engine::check_idle() {
  if (is_checked_) return;
  is_checked_ = true;
  scheduler_.check_invariants();
  update_levels();
}

// Admission lets in only what fits alone, so this is a fault of ours; but no client shall wait for ever because of it.
void Engine::fail_stuck() {
  const auto id = scheduler_.first_waiting();
  TANDEM_CHECK(id.has_value());
  log_error("serve/engine", "no step can be planned for what waits", {{"request", number(*id)}});
  publish(*scheduler_.fail(*id, {ErrorCode::kInternal, "the request cannot be scheduled"}));
}

void Engine::run_batch(const sched::Batch& batch) {
  const int64_t begin_ns = clock_.now_ns();
  auto outcome = executor_.execute(batch);
  const bool is_complete = outcome && outcome->items.size() == batch.items.size();
  if (is_complete) {
    has_failed_ = false;
    finish_step(std::move(*outcome), static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9);
    return;
  }
  metrics_.on_step_failure();
  const std::string why = outcome ? "the executor answered for another number of items" : outcome.error().message;
  if (!has_failed_) {
    log_warning("serve/engine", "a step failed and is tried again", {{"error", why}});
    has_failed_ = true;
    scheduler_.rollback();
    return;
  }
  log_error("serve/engine", "a step failed twice: its requests are run apart",
            {{"error", why}, {"items", std::to_string(batch.items.size())}});
  has_failed_ = false;
  finish_step(execute_isolated(executor_, batch), 0);
}

void Engine::finish_step(sched::StepOutcome outcome, double seconds) {
  const int64_t now_ns = clock_.now_ns();
  sched::CommitResult result = scheduler_.commit({std::move(outcome), now_ns, seconds});
  metrics_.on_step(scheduler_, result, seconds);
  for (const sched::RequestId id : result.started) gate_.start(id, now_ns);
  for (sched::Update& update : result.updates) {
    if (update.error) {
      metrics_.on_request_failure();
      log_error("serve/engine", "a request failed", {{"request", number(update.request)},
                                                     {"error", update.error->message}});
    }
    publish(std::move(update));
  }
}

void Engine::publish(sched::Update update) {
  const auto found = open_.find(update.request);
  TANDEM_CHECK(found != open_.end());
  Open& open = found->second;
  const sched::RequestId id = update.request;
  const bool is_last = update.is_last;
  const bool has_tokens =
      std::ranges::any_of(update.deltas, [](const sched::ChoiceDelta& delta) { return !delta.tokens.empty(); });
  open.times.scheduled_ns = update.scheduled_ns;
  for (const sched::ChoiceDelta& delta : update.deltas) {
    if (delta.choice != 0 || delta.tokens.empty()) continue;
    open.last_ns = clock_.now_ns();
    if (open.num_tokens == 0) open.first_ns = open.last_ns;
    open.num_tokens += static_cast<uint32_t>(delta.tokens.size());
  }
  if (has_tokens && open.times.first_token_ns == 0) open.times.first_token_ns = clock_.now_ns();
  open.sink->publish(std::move(update));
  if (!is_last) return;
  open.times.end_ns = clock_.now_ns();
  metrics_.on_end(open.times);
  learn_pace(open);
  open_.erase(found);
  gate_.end(id);
}

void Engine::learn_pace(const Open& ended) {
  if (ended.num_tokens < 2) return;
  const double seconds = static_cast<double>(ended.last_ns - ended.first_ns) * 1e-9;
  const double per_token = seconds / (ended.num_tokens - 1);
  seconds_per_output_ += (seconds_per_output_ == 0 ? 1 : 0.1) * (per_token - seconds_per_output_);
}

void Engine::update_levels() {
  const kv::BlockPool& pool = scheduler_.pool();
  num_running_.store(scheduler_.counts().num_running, std::memory_order_relaxed);
  kv_usage_.store(pool.num_blocks() == 0 ? 0 : static_cast<double>(pool.num_owned()) / pool.num_blocks(),
                  std::memory_order_relaxed);
  // A step as they are now may be an empty server's first; what others have just seen counts, if it is more.
  const cost::StepShape& shape = scheduler_.shape();
  const double step_s = scheduler_.cost().predict(shape);
  cost::StepShape longer = shape;
  longer.add_decode(shape.num_decode_rows == 0 ? 0 : shape.decode_attended / shape.num_decode_rows);
  Pace pace;
  pace.seconds_per_prefill_token = scheduler_.seconds_per_prefill_token();
  pace.step_seconds = std::max(step_s, seconds_per_output_);
  pace.mean_output_tokens = scheduler_.mean_output_tokens();
  pace.row_seconds = scheduler_.cost().predict(longer) - step_s;
  pace.num_running = scheduler_.counts().num_running;
  pace.num_seats = config_.sched.max_num_seqs;
  gate_.set_pace(pace);
  metrics_.on_levels(scheduler_, gate_.num_queued());
}

std::string Engine::debug_dump() {
  if (!thread_) return scheduler_.dump();
  if (is_stopping_.load()) return "the engine is stopping\n";
  const uint64_t ticket = dump_slot_->wanted.fetch_add(1) + 1;
  mailbox_.wake();
  Lock lock(dump_slot_->mutex);
  while (dump_slot_->num_answered < ticket) {
    if (!dump_slot_->answered.wait_for(dump_slot_->mutex, kDumpWaitS)) return "the engine is busy in a step\n";
  }
  return dump_slot_->text;
}

void Engine::answer_dump() {
  const uint64_t wanted = dump_slot_->wanted.load();
  Lock lock(dump_slot_->mutex);
  if (wanted == dump_slot_->num_answered) return;
  dump_slot_->text = scheduler_.dump();
  dump_slot_->num_answered = wanted;
  dump_slot_->answered.notify_all();
}

void Engine::end_all() {
  take_arrivals();
  while (!open_.empty()) {
    const sched::RequestId id = open_.begin()->first;
    publish(*scheduler_.fail(id, {ErrorCode::kUnavailable, "the server is shutting down"}));
  }
}

}  // namespace tandem::engine
