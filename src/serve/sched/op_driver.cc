#include "serve/sched/op_driver.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/log.h"

namespace tandem::sched {
namespace {

constexpr TokenId kEos = 2;
constexpr TokenId kStopToken = 3;
constexpr uint32_t kVocabSize = 12;
constexpr int64_t kStepNs = 5'000'000;

// What the scripted model says after `tokens`: few different ids, so that sequences meet again in the prefix index.
TokenId next_token(std::span<const TokenId> tokens, const SamplingParams& sampling) {
  uint64_t hash = sampling.seed * 31 + sampling.choice;
  for (const TokenId token : tokens) hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u + 1;
  hash ^= hash >> 32;
  for (uint32_t i = 0; i < kVocabSize; ++i) {
    const auto token = static_cast<TokenId>((hash + i) % kVocabSize);
    // End tokens come seldom.
    if ((token == kEos || token == kStopToken) && (hash >> 20) % 8 != 0) continue;
    if (std::ranges::find(sampling.banned, token) == sampling.banned.end()) return token;
  }
  return 0;
}

// Stops after the token 7 twice in a row.
class TwiceRule final : public StopRule {
 public:
  bool push(TokenId token, bool may_stop) override {
    const bool is_twice = token == 7 && previous_ == 7;
    previous_ = token;
    return is_twice && may_stop;
  }

 private:
  TokenId previous_ = -1;
};

}  // namespace

SchedulerConfig OpDriver::random_config(const Source& source) {
  SchedulerConfig config;
  config.block_size = 16 * (1 + source(2));
  config.num_blocks = 4 + source(24);
  config.num_private_blocks = source(3);
  config.enable_prefix_caching = source(8) != 0;
  config.max_num_seqs = 1 + source(8);
  config.max_num_batched_tokens = 8 + source(120);
  config.max_model_len = 200;
  config.window_ms = source(3) * 10.0;
  config.tpot_target_ms = source(2) * 8.0;
  config.decode_reserve_blocks = source(2);
  config.eos_ids = {kEos};
  config.forced_chunk = source(3) == 0 ? 1 + source(20) : 0;
  config.force_preempt_every = source(4) == 0 ? 3 + source(9) : 0;
  if (source(4) == 0) config.prefix_hash_mask = source(16);
  return config;
}

OpDriver::OpDriver(const SchedulerConfig& config, Source source)
    : source_(std::move(source)),
      config_(config),
      scheduler_(config),
      executor_({config.num_blocks, config.block_size, kVocabSize, 0}) {
  executor_.set_next_token([](const BatchItem& item) { return next_token(item.tokens, *item.sampling); });
}

Request OpDriver::random_request() {
  Request request;
  const uint32_t family = source_(3);
  const uint32_t length = 1 + source_(source_(4) == 0 ? 120 : 50);
  for (uint32_t i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<TokenId>((family * 5 + i * (family + 3)) % kVocabSize));
  }
  if (source_(2) == 0) request.prompt.back() = static_cast<TokenId>(source_(kVocabSize));
  request.sampling.seed = source_(2);
  request.num_choices = source_(5) == 0 ? 1 + source_(4) : 1;
  request.max_tokens = 1 + source_(40);
  request.min_tokens = source_(4) == 0 ? source_(12) : 0;
  request.ignore_eos = source_(4) == 0;
  if (source_(4) == 0) request.stop_token_ids = {kStopToken};
  if (source_(6) == 0) request.prompt_logprobs = static_cast<int32_t>(source_(3));
  if (request.prompt_logprobs >= 0 && source_(2) == 0) request.max_tokens = 0;
  request.priority = static_cast<int32_t>(source_(3)) - 1;
  request.tenant = std::string(source_(3), 'a');
  request.cache_salt = source_(6) == 0 ? "salt" : "";
  if (source_(10) == 0) request.deadline_ns = now_ns_ + int64_t{1 + source_(40)} * kStepNs;
  if (source_(3) == 0) request.make_stop_rule = [] { return std::make_unique<TwiceRule>(); };
  return request;
}

// The whole answer, as it is when the request is alone: no scheduler in here.
OpDriver::Expected OpDriver::expect(const Request& request, uint32_t choice) const {
  std::vector<TokenId> tokens = request.prompt;
  SamplingParams sampling = request.sampling;
  sampling.choice = choice;
  Expected expected;
  expected.finish.reason = FinishReason::kLength;
  std::vector<TokenId> stops = request.stop_token_ids;
  if (!request.ignore_eos) stops.push_back(kEos);
  TwiceRule rule;
  const uint64_t longest =
      std::min<uint64_t>(config_.max_model_len, uint64_t{config_.num_blocks} * config_.block_size + 1);
  while (expected.tokens.size() < request.max_tokens && tokens.size() < longest) {
    const bool may_stop = expected.tokens.size() + 1 >= request.min_tokens;
    sampling.banned = expected.tokens.size() < request.min_tokens ? stops : std::vector<TokenId>{};
    const TokenId token = next_token(tokens, sampling);
    tokens.push_back(token);
    expected.tokens.push_back(token);
    const bool is_twice = rule.push(token, may_stop) && request.make_stop_rule;
    if (may_stop && std::ranges::find(stops, token) != stops.end()) {
      expected.finish = {FinishReason::kStop, token, false};
      break;
    }
    if (is_twice) {
      expected.finish = {FinishReason::kStop, std::nullopt, true};
      break;
    }
  }
  return expected;
}

void OpDriver::submit() {
  Request request = random_request();
  if (!scheduler_.admission().check_fits(request)) return;
  QueueView view;
  view.num_queued = scheduler_.counts().num_waiting;
  view.queued_tokens = scheduler_.counts().num_waiting_tokens;
  if (open_.size() > 40 || !scheduler_.admission().check_load(request, view, now_ns_)) return;
  Watched watched;
  for (uint32_t choice = 0; choice < request.num_choices; ++choice) watched.expected.push_back(expect(request, choice));
  watched.got.resize(request.num_choices);
  watched.is_finished.resize(request.num_choices);
  watched.request = request;
  const RequestId id{next_id_++};
  open_.emplace(id, std::move(watched));
  scheduler_.add(id, std::move(request), now_ns_);
}

void OpDriver::cancel() {
  if (open_.empty()) return;
  auto victim = open_.begin();
  std::advance(victim, source_(static_cast<uint32_t>(open_.size())));
  const RequestId id = victim->first;
  const auto update = scheduler_.cancel(id);
  TANDEM_CHECK(update && update->is_last);
  see(*update, false);
  TANDEM_CHECK(!scheduler_.cancel(id));
}

void OpDriver::see_delta(Watched& watched, const ChoiceDelta& delta, bool is_cancel) {
  TANDEM_CHECK(delta.choice < watched.got.size() && !watched.is_finished[delta.choice]);
  const Expected& expected = watched.expected[delta.choice];
  std::vector<TokenId>& got = watched.got[delta.choice];
  for (const TokenId token : delta.tokens) {
    TANDEM_CHECK(got.size() < expected.tokens.size() && expected.tokens[got.size()] == token);
    got.push_back(token);
  }
  if (!delta.finish) return;
  watched.is_finished[delta.choice] = true;
  if (is_cancel) return;
  TANDEM_CHECK(got.size() == expected.tokens.size());
  TANDEM_CHECK(delta.finish->reason == expected.finish.reason);
  TANDEM_CHECK(delta.finish->stop_token == expected.finish.stop_token);
  TANDEM_CHECK(delta.finish->by_stop_rule == expected.finish.by_stop_rule);
}

void OpDriver::see(const Update& update, bool may_fail) {
  const auto found = open_.find(update.request);
  TANDEM_CHECK(found != open_.end());
  Watched& watched = found->second;
  TANDEM_CHECK(may_fail || !update.error);
  const bool is_cancel =
      !update.deltas.empty() && update.deltas[0].finish && update.deltas[0].finish->reason == FinishReason::kCancelled;
  if (!update.prompt_logprobs.empty()) {
    TANDEM_CHECK(!watched.has_prompt_logprobs && watched.request.prompt_logprobs >= 0);
    TANDEM_CHECK(update.prompt_logprobs.size() + 1 == watched.request.prompt.size());
    for (size_t i = 0; i < update.prompt_logprobs.size(); ++i) {
      TANDEM_CHECK(update.prompt_logprobs[i].token == watched.request.prompt[i + 1]);
    }
    watched.has_prompt_logprobs = true;
  }
  for (const ChoiceDelta& delta : update.deltas) see_delta(watched, delta, is_cancel);
  if (!update.is_last) return;
  const bool all_finished = std::ranges::all_of(watched.is_finished, [](bool is) { return is; });
  TANDEM_CHECK(all_finished || update.error);
  const bool wants_logprobs = watched.request.prompt_logprobs >= 0 && watched.request.prompt.size() > 1;
  TANDEM_CHECK(is_cancel || update.error || watched.has_prompt_logprobs == wants_logprobs);
  ++num_finished_;
  open_.erase(found);
}

void OpDriver::step() {
  now_ns_ += kStepNs;
  for (const Update& update : scheduler_.expire(now_ns_)) see(update, true);
  const Batch batch = scheduler_.plan_step(now_ns_);
  if (batch.items.empty()) {
    TANDEM_CHECK(scheduler_.is_idle());
    return;
  }
  TANDEM_CHECK(batch.num_tokens <= scheduler_.config().max_num_batched_tokens);
  auto outcome = executor_.execute(batch);
  if (!outcome) log_error("serve/sched", outcome.error().message);
  TANDEM_CHECK(static_cast<bool>(outcome));
  const double seconds = 1e-3 + 1e-5 * batch.num_tokens;
  for (const Update& update : scheduler_.commit({std::move(*outcome), now_ns_, seconds}).updates) see(update, false);
}

void OpDriver::fail_step() {
  const std::string before = scheduler_.dump();
  const Batch batch = scheduler_.plan_step(now_ns_);
  if (batch.items.empty()) return;
  // Half of the failing steps have already written KV, so that not all can be put back.
  if (source_(2) == 0) {
    TANDEM_CHECK(static_cast<bool>(executor_.execute(batch)));
    scheduler_.rollback();
    return;
  }
  scheduler_.discard_plan();
  TANDEM_CHECK(scheduler_.dump() == before);
}

void OpDriver::fail_item() {
  const Batch batch = scheduler_.plan_step(now_ns_);
  if (batch.items.empty()) return;
  auto outcome = executor_.execute(batch);
  TANDEM_CHECK(static_cast<bool>(outcome));
  outcome->items[source_(static_cast<uint32_t>(batch.items.size()))].error =
      Error{ErrorCode::kInternal, "scripted"};
  const CommitResult result = scheduler_.commit({std::move(*outcome), now_ns_, 0});
  const auto num_errors = std::ranges::count_if(result.updates, [](const Update& u) { return u.error.has_value(); });
  TANDEM_CHECK(num_errors == 1);
  for (const Update& update : result.updates) see(update, true);
}

void OpDriver::run_op() {
  const uint32_t op = source_(32);
  if (op < 8) {
    submit();
  } else if (op < 24) {
    step();
  } else if (op < 26) {
    fail_step();
  } else if (op < 27) {
    fail_item();
  } else if (op < 29) {
    cancel();
  } else if (op < 30) {
    scheduler_.preempt_one();
  } else if (op < 31) {
    now_ns_ += int64_t{source_(20)} * 1'000'000;
  } else if (source_(8) == 0) {
    scheduler_.pool().drop_cache();
  }
  scheduler_.check_invariants();
  TANDEM_CHECK(scheduler_.is_idle() == open_.empty());
}

void OpDriver::drain() {
  for (uint32_t i = 0; !scheduler_.is_idle(); ++i) {
    if (i == 20000) log_error("serve/sched", scheduler_.dump());
    TANDEM_CHECK(i < 20000);
    step();
    scheduler_.check_invariants();
  }
  TANDEM_CHECK(scheduler_.pool().num_owned() == 0 && open_.empty());
}

}  // namespace tandem::sched
