#include "cluster/handoff/gateway_request.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace tandem::handoff {
namespace {

constexpr Nanos kRetry = 20 * kMs;  // Waiting, when there are nodes and none has room
constexpr uint32_t kMoveLag = 2;    // tokens: what a move leaves to be computed anew

uint32_t left_ms(Nanos deadline, Nanos now) {
  if (deadline == INT64_MAX) return UINT32_MAX;
  return static_cast<uint32_t>(std::clamp<Nanos>((deadline - now) / kMs, 0, UINT32_MAX));
}

// A failure that another node might not have.
bool is_worth_retrying(ErrorCode code) {
  return code == ErrorCode::kExhausted || code == ErrorCode::kUnavailable || code == ErrorCode::kInternal ||
         code == ErrorCode::kCorrupt;
}

template <class T>
bool is_of_attempt(const T& message, const RequestId& id, Attempt attempt) {
  return message.request == id && message.attempt == attempt;
}

}  // namespace

GatewayRequest::GatewayRequest(RequestId id, RequestState state, const Options& options, Nanos now)
    : id_(id),
      state_(std::move(state)),
      options_(options),
      judge_(static_cast<uint32_t>(state_.choices.size())),
      asked_at_(now),
      entered_at_(now),
      waiting_since_(now) {}

RequestState GatewayRequest::current_state() const {
  RequestState state = state_;
  state.choices = judge_.choices();
  return state;
}

bool GatewayRequest::involves(const std::string& node) const {
  return node == source_.id || node == target_.id || node == holder_.id || touched_.contains(node);
}

PlacementQuery GatewayRequest::query() const {
  PlacementQuery query;
  query.request = id_;
  query.is_first_attempt = !was_prefilled_;
  query.shape = shape_of(current_state(), 16, 1);
  query.final_tokens = options_.final_tokens;
  query.not_target = refused_;
  query.not_source = avoided_source_;
  return query;
}

void GatewayRequest::send(const Context& context, const std::string& node, SessionMessage message) {
  context.out.push_back(ToNode{node, std::move(message)});
}

// Attempt + 1 with the target kept when it is still good, else with the holder, else with anyone.
void GatewayRequest::start(const Context& context, bool is_target_kept) {
  PlacementQuery wanted = query();
  const std::string holder = holder_.id.empty() ? source_.id : holder_.id;
  wanted.keep_source = holder;
  if (is_target_kept)
    wanted.keep_target = target_.id;
  else if (options_.does_holder_adopt && phase_ == Phase::kDecoding)
    wanted.keep_target = holder;
  const std::optional<Placed> placed = context.placement.place(wanted);
  if (placed)
    begin_attempt(*placed, context, true);
  else if (attempt_ > 0)
    wait(context);
}

void GatewayRequest::wait(const Context& context) {
  release_unused(context, attempt_);
  phase_ = Phase::kWaiting;
  source_ = target_ = {};
  waiting_since_ = context.now;
  retry_at_ = context.now + kRetry;
}

// Nobody had room for it, and nobody has anything of it: it waits with the others, in its old place. Such an attempt is
// no failure, and is not tried again at once: a Reserve has the prompt in it.
void GatewayRequest::queue_again(const Context& context) {
  release_unused(context, attempt_);
  phase_ = Phase::kQueued;
  source_ = target_ = {};
  refused_.clear();
  entered_at_ = asked_at_;
  waiting_since_ = context.now;
  ++num_refused_;
  retry_pause_ = std::clamp(2 * retry_pause_, kRetry, 10 * kRetry);
  retry_at_ = context.now + retry_pause_;
}

void GatewayRequest::begin_attempt(const Placed& placed, const Context& context, bool is_new) {
  if (is_new) {
    const bool has_first = judge_.has_any();
    num_attempts_after_first_ += has_first;
    const bool is_spent = num_attempts_after_first_ > context.timing.max_attempts_after_first ||
                          (!has_first && attempt_ - num_refused_ >= context.timing.max_attempts_before_first);
    if (is_spent) return end(context, ErrorCode::kInternal, "no node could complete the request");
    ++attempt_;
    refused_.clear();
    never_fits_ = true;
  }
  source_ = placed.source;
  target_ = placed.target;
  predicted_prefill_ = placed.predicted_prefill;
  move_to_.reset();
  release_unused(context, attempt_ - 1);
  holder_ = {};
  mirror_lag_ = 0;
  phase_ = Phase::kReserving;
  entered_at_ = context.now;
  touched_.insert(source_.id);
  touched_.insert(target_.id);
  Reserve reserve{id_,
                  attempt_,
                  source_,
                  shape_of(current_state(), 0, 0),
                  options_.final_tokens,
                  left_ms(options_.deadline, context.now)};
  reserve.traceparent = options_.traceparent;
  if (source_ != target_) {
    reserve.prompt = state_.prompt;
    reserve.cache_salt = state_.cache_salt;
  }
  send(context, target_.id, std::move(reserve));
}

// Those that are not of the pair, with what they have of attempts up to `upto`.
void GatewayRequest::release_unused(const Context& context, Attempt upto) {
  for (auto it = touched_.begin(); it != touched_.end();) {
    if (*it == source_.id || *it == target_.id) {
      ++it;
      continue;
    }
    if (context.placement.open_node(*it)) send(context, *it, Release{id_, upto});
    it = touched_.erase(it);
  }
}

void GatewayRequest::end(const Context& context, std::optional<ErrorCode> error, std::string message) {
  if (phase_ == Phase::kDone) return;
  phase_ = Phase::kDone;
  for (const std::string& node : touched_) {
    if (context.placement.open_node(node)) send(context, node, Release{id_, attempt_});
  }
  touched_.clear();
  context.out.push_back(EndRequest{id_, error, std::move(message)});
}

void GatewayRequest::cancel(const Context& context, ErrorCode reason, const char* message) {
  end(context, reason, message);
}

void GatewayRequest::on_tick(const Context& context) {
  if (phase_ == Phase::kDone) return;
  if (context.now >= options_.deadline) return end(context, ErrorCode::kDeadline, "the deadline has passed");
  if (phase_ == Phase::kQueued) {
    // Between upgrades there may be nodes for all others and none for this one: it does not fill the queue for ever.
    if (!is_extended(state_) || context.placement.has_open_node(true)) waiting_since_ = context.now;
    if (context.now - waiting_since_ >= context.timing.recovery_deadline) {
      return end(context, ErrorCode::kUnavailable, "no node knows this kind of request yet");
    }
    if (context.now >= retry_at_) start(context, false);
    return;
  }
  if (phase_ == Phase::kWaiting) {
    if (is_held(context)) return;
    if (context.placement.has_open_node(is_extended(state_))) waiting_since_ = context.now;
    if (context.now - waiting_since_ >= context.timing.recovery_deadline) {
      return end(context, ErrorCode::kUnavailable, "no node is left to go on with the request");
    }
    if (context.now < retry_at_) return;
    retry_at_ = context.now + kRetry;
    refused_.clear();
    avoided_source_.clear();
    if (const auto placed = context.placement.place(query())) begin_attempt(*placed, context, true);
    return;
  }
  check_deadlines(context);
}

void GatewayRequest::check_deadlines(const Context& context) {
  if (phase_ == Phase::kReserving && context.now - entered_at_ >= context.timing.reserve) {
    send(context, target_.id, Release{id_, attempt_});
    const std::string silent = target_.id;
    PlacementQuery wanted = query();
    wanted.keep_source = source_.id;
    wanted.not_target.insert(silent);
    const std::optional<Placed> placed = context.placement.place(wanted);
    if (placed)
      begin_attempt(*placed, context, true);
    else
      wait(context);
    return;
  }
  if (phase_ == Phase::kPrefilling) {
    const Nanos since = std::max(entered_at_, context.placement.progressed_at(source_.id));
    if (context.now - since < 3 * predicted_prefill_ + context.timing.prefill_slack) return;
    avoided_source_.insert(source_.id);
    start(context, true);
    return;
  }
  if (phase_ == Phase::kDecoding && options_.is_mirrored && !is_protected() &&
      context.now - mirror_asked_at_ >= context.timing.mirror_retry) {
    protect(context);
  }
}

// Names a node for the mirror: the one a move goes to, or any.
void GatewayRequest::protect(const Context& context) {
  mirror_asked_at_ = context.now;
  PlacementQuery wanted = query();
  wanted.not_target.insert(target_.id);
  const std::optional<NodeRef> holder = move_to_ ? move_to_ : context.placement.place_holder(wanted);
  if (!holder) return;
  touched_.insert(holder->id);
  send(context, holder->id, Hold{id_, attempt_, current_state(), kv_token_});
  send(context, target_.id, SetMirror{id_, attempt_, *holder});
}

void GatewayRequest::move_to(const NodeRef& node, const Context& context) {
  if (phase_ != Phase::kDecoding || node == target_ || move_to_) return;
  move_to_ = node;
  if (holder_ != node) protect(context);
}

void GatewayRequest::leave_target(const Context& context) {
  if (phase_ != Phase::kDecoding) return;
  refused_.insert(target_.id);
  start(context, false);
}

void GatewayRequest::on_mirror_progress(const std::string& node, const MirrorProgress& progress,
                                        const Context& context) {
  if (phase_ != Phase::kDecoding || node != target_.id || progress.attempt != attempt_) return;
  if (progress.holder.id.empty() || !context.placement.open_node(progress.holder.id)) {
    holder_ = {};
    return;
  }
  mirror_lag_ = progress.lag_tokens;
  // A new holder counts once it is nearly there; until then the old one is the better place to go on.
  if (progress.lag_tokens <= kMoveLag || holder_.id.empty()) holder_ = progress.holder;
  if (!move_to_ || progress.holder != *move_to_ || progress.lag_tokens > kMoveLag) return;
  PlacementQuery wanted = query();
  wanted.keep_source = wanted.keep_target = move_to_->id;
  const std::optional<Placed> placed = context.placement.place(wanted);
  if (placed && placed->target == *move_to_)
    begin_attempt(*placed, context, true);
  else
    move_to_.reset();
}

void GatewayRequest::on_process_died(const NodeRef& process) {
  const auto it = broken_with_.find(process);
  if (it != broken_with_.end()) it->second = true;
}

// It may be what ends the processes, so the next one is risked only once it is known that they live, or no longer can
// be: a machine that is gone with its link says nothing, and a cut link is nobody's death.
bool GatewayRequest::is_held(const Context& context) {
  if (held_until_ == 0) return false;
  const auto num_dead = std::count_if(broken_with_.begin(), broken_with_.end(), [](const auto& b) { return b.second; });
  if (static_cast<size_t>(num_dead) >= context.timing.max_deaths) {
    end(context, ErrorCode::kInternal, "the processes that computed this request died, one after the other");
    return true;
  }
  if (broken_with_.size() >= context.timing.max_deaths && context.now < held_until_) return true;
  held_until_ = 0;
  return false;
}

void GatewayRequest::on_session_closed(const std::string& node, bool is_broken, const Context& context) {
  touched_.erase(node);
  if (move_to_ && move_to_->id == node) move_to_.reset();
  if (phase_ == Phase::kDone || phase_ == Phase::kQueued || phase_ == Phase::kWaiting) return;
  const bool is_decode = phase_ == Phase::kDecoding && node == target_.id;
  const bool is_prefill = phase_ == Phase::kPrefilling && node == source_.id;
  if (is_broken && (is_decode || is_prefill)) {
    broken_with_.emplace(is_decode ? target_ : source_, false);
    if (broken_with_.size() >= context.timing.max_deaths) {
      held_until_ = context.now + context.timing.death_known;
      return wait(context);
    }
  }
  const bool was_holder = holder_.id == node;
  if (was_holder) {
    holder_ = {};
    mirror_asked_at_ = context.now - context.timing.mirror_retry;  // at the next tick
  }
  if (node == target_.id) {
    start(context, false);
  } else if (node == source_.id && phase_ != Phase::kDecoding) {
    if (test_only.has_no_new_attempt && phase_ == Phase::kPrefilling) {
      PlacementQuery wanted = query();
      wanted.keep_target = target_.id;
      if (const auto placed = context.placement.place(wanted)) {
        source_ = placed->source;
        send(context, source_.id, Prefill{id_, attempt_, target_, 0, 0, PartSet(), current_state(), 0, 0, ""});
      }
      return;
    }
    start(context, true);
  }
}

void GatewayRequest::on_message(const std::string& node, const SessionMessage& message, const Context& context) {
  if (phase_ == Phase::kDone) return;
  const bool is_target = node == target_.id;
  const bool is_reserving = phase_ == Phase::kReserving;
  const bool is_prefilling = phase_ == Phase::kPrefilling;
  if (const auto* ok = std::get_if<ReserveOk>(&message)) {
    if (is_of_attempt(*ok, id_, attempt_) && is_reserving && is_target) send_prefill(*ok, context);
  } else if (const auto* no = std::get_if<ReserveNo>(&message)) {
    if (is_of_attempt(*no, id_, attempt_) && is_reserving && is_target) on_reserve_no(*no, context);
  } else if (const auto* running = std::get_if<Running>(&message)) {
    if (is_of_attempt(*running, id_, attempt_) && is_reserving && is_target) {
      kv_token_ = running->kv_token;
      enter_decoding(context);
    }
  } else if (const auto* failed = std::get_if<XferFailed>(&message)) {
    if (!is_of_attempt(*failed, id_, attempt_) || !is_prefilling || node != source_.id) return;
    context.out.push_back(PairFailed{source_.id, target_.id});
    start(context, true);
  } else if (const auto* error = std::get_if<Failed>(&message)) {
    const bool is_of_pair = is_target || node == source_.id;
    if (is_of_attempt(*error, id_, attempt_) && is_of_pair) on_failed(*error, context);
  }
}

void GatewayRequest::send_prefill(const ReserveOk& ok, const Context& context) {
  phase_ = Phase::kPrefilling;
  entered_at_ = context.now;
  kv_token_ = ok.kv_token;
  was_prefilled_ = true;
  send(
      context, source_.id,
      Prefill{id_, attempt_, target_, ok.landing, ok.kv_token, ok.have, current_state(),
              left_ms(options_.deadline, context.now), static_cast<uint32_t>(options_.priority), options_.traceparent});
}

// The refusing node made no state, so the same attempt may go to another target.
void GatewayRequest::on_reserve_no(const ReserveNo& no, const Context& context) {
  if (no.reason == ReserveRefusal::kUnknownFormat) context.out.push_back(PairFailed{source_.id, target_.id});
  refused_.insert(target_.id);
  never_fits_ &= no.reason == ReserveRefusal::kNeverFits;
  PlacementQuery wanted = query();
  wanted.keep_source = source_.id;
  const std::optional<Placed> placed = context.placement.place(wanted);
  if (!placed && never_fits_ && !judge_.has_any()) {
    return end(context, ErrorCode::kExhausted, "no node has room for so long a request");
  }
  if (!placed) return was_prefilled_ || judge_.has_any() ? wait(context) : queue_again(context);
  // Another source would need an attempt of its own.
  begin_attempt(*placed, context, placed->source != source_);
}

void GatewayRequest::on_failed(const Failed& failed, const Context& context) {
  if (!is_worth_retrying(failed.code)) return end(context, failed.code, failed.message);
  refused_.insert(target_.id);
  start(context, false);
}

void GatewayRequest::enter_decoding(const Context& context) {
  if (phase_ == Phase::kPrefilling) {
    context.out.push_back(PairWorked{source_.id, target_.id});
    // The source holds what it pushed. One that is the target protects nothing.
    if (source_ != target_) holder_ = source_;
  }
  phase_ = Phase::kDecoding;
  entered_at_ = context.now;
  avoided_source_.clear();
  // Running: whoever held the old attempt has a pin that the target's frames no longer match.
  mirror_asked_at_ = context.now - (is_protected() ? 0 : context.timing.mirror_retry);
}

void GatewayRequest::on_token(const std::string& node, const TokenEntry& entry, const Context& context) {
  if (phase_ == Phase::kDone || entry.request != id_) return;
  const bool is_late = entry.attempt != attempt_;
  const bool is_from_target = node == target_.id;
  const bool is_first = node == source_.id && !is_from_target;
  const bool is_wanted =
      phase_ == Phase::kPrefilling || phase_ == Phase::kDecoding || (phase_ == Phase::kReserving && is_from_target);
  if (!test_only.has_no_attempt_fence && (is_late || !is_wanted || (!is_from_target && !is_first))) {
    ++num_stale_;
    // Dropped. Equal numerics mean that it is the same token, so one that is already out can still be compared.
    const auto& choices = judge_.choices();
    if (entry.choice < choices.size() && entry.index < choices[entry.choice].tokens.size() &&
        choices[entry.choice].tokens[entry.index] != entry.token) {
      ++num_mismatches_;
    }
    return;
  }
  if (is_from_target && !is_late && phase_ != Phase::kDecoding) enter_decoding(context);
  switch (judge_.judge(entry)) {
    case Verdict::kEmit:
      context.out.push_back(Emit{entry});
      break;
    case Verdict::kMismatch:
      ++num_mismatches_;
      break;
    case Verdict::kRepeated:
      break;
    case Verdict::kGap:
      if (!test_only.has_no_attempt_fence) start(context, true);
      return;
  }
  if (judge_.is_finished()) end(context, std::nullopt, "");
}

}  // namespace tandem::handoff
