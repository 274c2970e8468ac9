// What a node does for one request: reservation, prefill, holding, decode.
#include <algorithm>
#include <utility>

#include "cluster/role/node.h"
#include "serve/kv/block_table.h"

namespace tandem::role {

using namespace handoff;

// ---- target

// Room for each unfinished choice at its predicted length. Does not grow with what is emitted: a request that fitted
// once fits again.
static uint32_t blocks_to_reserve(HandoffShape shape, uint32_t final_tokens) {
  for (uint32_t& tokens : shape.choice_tokens) tokens = std::max(tokens, final_tokens);
  return shape.num_blocks();
}

void Node::on_reserve(const std::string& gateway, Reserve reserve, Nanos now, NodeActions& out) {
  reserve.shape.block_size = kv_.block_size();
  reserve.shape.num_layer_groups = config_.num_layer_groups;
  const Id id = reserve.request;
  const auto it = entries_.find(id);
  Actions actions;
  if (it != entries_.end() && it->second.target) {
    Entry& entry = it->second;
    if (reserve.attempt <= entry.target->attempt()) return;
    const bool is_kept = entry.target->state() == Target::State::kDecoding || refit_target(entry, reserve);
    if (is_kept) {
      entry.marks.prefilled_at = 0;
      entry.target->on_reserve(reserve, next_landing_++, actions);
      return carry_out(id, entry, actions, out);
    }
    end_target(entry);
    erase_if_empty(id);
  }
  const uint32_t wanted = blocks_to_reserve(reserve.shape, reserve.final_tokens);
  const bool never_fits = wanted > kv_.num_private();
  if (is_draining_ || never_fits || !kv_.reserve(wanted)) {
    const ReserveRefusal reason = is_draining_ ? ReserveRefusal::kDraining
                                  : never_fits ? ReserveRefusal::kNeverFits
                                               : ReserveRefusal::kNoRoom;
    return send_to_gateway(gateway, ReserveNo{id, reserve.attempt, reason}, out);
  }
  Entry& entry = entries_[id];
  entry.gateway = gateway;
  entry.reserved = wanted;
  entry.final_tokens = reserve.final_tokens;
  entry.reserved_at = now;
  entry.marks.prefilled_at = entry.marks.gate_at = 0;
  // An own prefill's blocks become the target's when it is done; others arrive, and need a place now.
  const bool is_local = reserve.source == config_.self;
  PartSet have = is_local ? PartSet(reserve.shape.num_parts()) : take_cached(entry, reserve);
  if (!is_local && !kv_.fit(entry.decoding, reserve.shape, kv::Part::kPrivate)) {
    end_target(entry);
    erase_if_empty(id);
    return send_to_gateway(gateway, ReserveNo{id, reserve.attempt, ReserveRefusal::kNoRoom}, out);
  }
  const uint64_t landing = next_landing_++;
  const uint64_t token = config_.draw_token ? config_.draw_token() : landing;
  entry.target.emplace(reserve, config_.self, landing, token, std::move(have), actions);
  if (test_only.has_no_gate) entry.target->test_only_open_gate();
  if (test_only.has_no_push_fence) {
    for (uint32_t b = 0; !is_local && b < reserve.shape.num_blocks(); ++b) {
      test_only_landings_[landing].push_back(entry.decoding.at(reserve.shape, b));
    }
  }
  carry_out(id, entry, actions, out);
}

// What the prefix cache has of the prompt need not be pushed: blocks that a prompt fills are only read by a decode.
PartSet Node::take_cached(Entry& entry, const Reserve& reserve) {
  PartSet have(reserve.shape.num_parts());
  if (reserve.prompt.size() != reserve.shape.prompt_tokens) return have;  // left out
  kv_.match(entry.decoding, reserve.prompt, reserve.cache_salt, reserve.shape.num_shared(), kv::Part::kPrivate);
  const auto num_cached = static_cast<uint32_t>(entry.decoding.shared.size());
  for (uint32_t part = 0; part < num_cached * reserve.shape.num_layer_groups; ++part) have.add(part);
  num_cached_blocks_ += num_cached;
  return have;
}

// The reservation and its blocks for the shape of a newer attempt. False: a new one has to be made.
bool Node::refit_target(Entry& entry, const Reserve& reserve) {
  const bool was_local = entry.target->source() == config_.self;
  const bool is_local = reserve.source == config_.self;
  if (was_local != is_local) return false;
  const uint32_t wanted = blocks_to_reserve(reserve.shape, reserve.final_tokens);
  if (wanted > entry.reserved) {
    if (!kv_.reserve(wanted - entry.reserved)) return false;
    entry.reserved = wanted;
  }
  entry.final_tokens = reserve.final_tokens;
  return is_local || kv_.fit(entry.decoding, reserve.shape, kv::Part::kPrivate);
}

void Node::end_target(Entry& entry) {
  if (entry.target && entry.target->state() == Target::State::kDecoding) {
    kv_.publish(entry.decoding, entry.target->request_state(), entry.target->written()[0]);
  }
  entry.target.reset();
  kv_.release(entry.decoding);
  kv_.unreserve(entry.reserved);
  entry.reserved = 0;
}

void Node::begin_decode(const Id& id, Entry& entry, const RequestState& state, NodeActions& out) {
  // The table first: the engine writes the first tokens' KV in its first step.
  const size_t at = out.size();
  if (!extend_for(id, entry, state, out)) return;
  out.resize(at);  // the tables go along whole
  // Others with the same prompt, or its beginning, need not have these pushed.
  kv_.publish(entry.decoding, state, static_cast<uint32_t>(state.prompt.size()));
  out.push_back(StartDecode{id, state, entry.decoding});
  entry.marks.gate_at = now_;
  entry.marks.has_stepped = false;
  tell_parts(id, entry, entry.target->attempt(), {{Part::kTransfer, entry.marks.prefilled_at, now_}}, out);
}

// A place for the newest token of each choice, and for some more where the reservation has it. Without one the request
// goes elsewhere.
bool Node::extend_for(const Id& id, Entry& entry, const RequestState& state, NodeActions& out) {
  for (uint32_t c = 0; c < state.choices.size(); ++c) {
    if (state.choices[c].is_finished) continue;
    const auto num_emitted = static_cast<uint32_t>(state.choices[c].tokens.size());
    const uint32_t ahead = std::min(config_.lookahead_tokens,
                                    entry.final_tokens - std::min(entry.final_tokens, num_emitted));
    const auto position = static_cast<uint32_t>(state.prompt.size()) + num_emitted - 1;
    const size_t needed = position / kv_.block_size() + 1;
    const size_t wanted = (position + ahead) / kv_.block_size() + 1;
    const auto size = [&] { return entry.decoding.shared.size() + entry.decoding.own[c].size(); };
    while (size() < wanted) {
      if (!kv_.append(entry.decoding, c, kv::Part::kPrivate)) {
        if (size() >= needed) break;
        send_to_gateway(entry.gateway,
                        Failed{id, entry.target->attempt(), ErrorCode::kExhausted, "no block to grow by"}, out);
        return false;
      }
      out.push_back(ExtendTable{id, c, entry.decoding.own[c].back()});
    }
  }
  return true;
}

void Node::on_step_tokens(const StepTokens& step, NodeActions& out) {
  const auto it = entries_.find(step.request);
  if (it == entries_.end() || !it->second.target) return;
  Entry& entry = it->second;
  if (entry.target->state() != Target::State::kDecoding) return;
  Actions actions;
  TokenBatch batch{++step_seq_, {}, {}};
  entry.target->on_tokens(step.tokens, batch.entries, actions);
  const Attempt attempt = entry.target->attempt();
  // Before its last token, after which the gateway has forgotten it.
  if (entry.target->state() != Target::State::kDecoding) {
    tell_parts(step.request, entry, attempt, {{Part::kDecode, entry.marks.gate_at, now_}}, out);
  }
  if (!std::exchange(entry.marks.has_stepped, true)) {
    tell_parts(step.request, entry, attempt,
               {{Part::kDecodeQueue, entry.marks.gate_at, step.began_at}, {Part::kFirstEmit, step.began_at, now_}},
               out);
  }
  if (!batch.entries.empty()) send_to_gateway(entry.gateway, std::move(batch), out);
  carry_out(it->first, entry, actions, out);
  if (entry.target->state() == Target::State::kDecoding) {
    if (extend_for(it->first, entry, entry.target->request_state(), out)) return;
  } else {
    kv_.publish(entry.decoding, entry.target->request_state(), entry.target->written()[0]);
  }
  out.push_back(StopDecoding{step.request});
  end_target(entry);
  erase_if_empty(step.request);
}

// The request's own fault, or this engine's: the gateway tells the client and releases it.
void Node::on_job_failed(const JobFailed& failed, NodeActions& out) {
  const auto it = entries_.find(failed.request);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  const bool is_decode = entry.target && entry.target->state() == Target::State::kDecoding;
  if (!is_decode && !entry.source) return;
  const Attempt attempt = is_decode ? entry.target->attempt() : entry.source->attempt();
  send_to_gateway(entry.gateway, Failed{failed.request, attempt, failed.code, failed.message}, out);
  if (is_decode) {
    end_target(entry);
  } else {
    entry.waits_for_room = false;
    entry.source.reset();
  }
  erase_if_empty(failed.request);
}

// ---- source and holder

// Pins what is here of these tokens. Afterwards the holder's counts and the blocks agree, and no block that others read
// will be written.
void Node::pin_content(Entry& entry, Attempt attempt, const RequestState& state) {
  const auto num_choices = static_cast<uint32_t>(state.choices.size());
  if (!entry.holder) entry.holder.emplace(Holder(entry.source ? entry.source->request() : Id{}, num_choices));
  Holder& holder = *entry.holder;
  holder.pin(attempt, state);
  const auto num_shared = static_cast<uint32_t>(state.prompt.size()) / kv_.block_size();
  bool has_prompt = !entry.held.is_empty() && !reads_whole_prompt(state);
  for (uint32_t c = 0; c < num_choices; ++c) {
    if (!state.choices[c].is_finished && holder.held(c) < num_shared * kv_.block_size()) has_prompt = false;
  }
  if (!has_prompt) kv_.release(entry.held);
  for (uint32_t c = 0; c < num_choices; ++c) holder.limit(c, has_prompt ? kv_.cut(entry.held, c, holder.held(c)) : 0);
}

void Node::on_prefill(const std::string& gateway, const Prefill& prefill, Nanos now, NodeActions& out) {
  Entry& entry = entries_[prefill.request];
  if (entry.source && entry.source->attempt() >= prefill.attempt) return;
  entry.gateway = gateway;
  end_source_job(entry, out);
  const HandoffShape shape = shape_of(prefill.state, kv_.block_size(), config_.num_layer_groups);
  if (shape.num_blocks() > kv_.num_shared()) {
    send_to_gateway(gateway, Failed{prefill.request, prefill.attempt, ErrorCode::kExhausted, "too long for the pool"},
                    out);
    return erase_if_empty(prefill.request);
  }
  entry.held_token = prefill.kv_token;
  entry.source.emplace(prefill, config_.self, kv_.block_size(), config_.num_layer_groups, now);
  entry.marks.told_at = now;
  if (entry.holder && entry.holder->attempt() >= prefill.attempt) entry.holder.reset();
  pin_content(entry, prefill.attempt, prefill.state);
  entry.waits_for_room = true;
  try_start_prefill(entry, out);
}

void Node::try_start_prefill(Entry& entry, NodeActions& out) {
  Source& source = *entry.source;
  const RequestState& state = source.request_state();
  const uint32_t size = kv_.block_size();
  std::vector<uint32_t> computed;
  for (uint32_t c = 0; c < state.choices.size(); ++c) computed.push_back(entry.holder->held(c));
  if (entry.held.is_empty()) {
    // At least one token is computed, for there must be logits to sample from.
    const auto num_prompt = static_cast<uint32_t>(state.prompt.size());
    const bool has_tokens = std::all_of(state.choices.begin(), state.choices.end(),
                                        [](const ChoiceState& c) { return !c.tokens.empty(); });
    const uint32_t num_known = (num_prompt - (has_tokens ? 0 : 1)) / size;
    kv_.match(entry.held, state.prompt, state.cache_salt, reads_whole_prompt(state) ? 0 : num_known,
              kv::Part::kShared);
    computed.assign(computed.size(), static_cast<uint32_t>(entry.held.shared.size()) * size);
  }
  if (!kv_.fit(entry.held, source.shape(), kv::Part::kShared)) {
    // Blocks that only wait are better used by others; what they hold stays findable.
    if (std::all_of(computed.begin(), computed.end(), [&](uint32_t n) { return n % size == 0; })) {
      for (uint32_t c = 0; c < computed.size(); ++c) entry.holder->limit(c, 0);
      kv_.release(entry.held);
    }
    return;
  }
  entry.waits_for_room = false;
  out.push_back(StartPrefill{source.request(), source.attempt(), state, entry.held, std::move(computed),
                             source.priority()});
}

// The job's blocks stay with the holder, but only what was there before the job is known to be computed.
void Node::end_source_job(Entry& entry, NodeActions& out) {
  if (entry.source && entry.source->state() == Source::State::kPushing && !entry.waits_for_room) {
    out.push_back(StopPrefill{entry.source->request()});
  }
  entry.waits_for_room = false;
  entry.source.reset();
}

void Node::on_sampled(const Sampled& sampled, Nanos now, NodeActions& out) {
  const auto it = entries_.find(sampled.request);
  if (it == entries_.end() || !it->second.source || it->second.source->attempt() != sampled.attempt) return;
  Entry& entry = it->second;
  Source& source = *entry.source;
  if (source.state() != Source::State::kPushing) return;
  const RequestState& state = source.request_state();
  entry.holder->computed(state);
  kv_.publish(entry.held, state, source.shape().num_positions(0));
  Actions actions;
  const double bytes = source.shape().num_blocks() * config_.bytes_per_block;
  const auto transfer = static_cast<Nanos>(bytes / config_.push_bytes_per_s * 1e9);
  entry.marks.sampled_at = sampled.ended_at;
  source.on_sampled(sampled.first, transfer, config_.timing, now, actions);
  carry_out(it->first, entry, actions, out);
  tell_parts(it->first, entry, sampled.attempt,
             {{Part::kPrefillQueue, entry.marks.told_at, sampled.began_at},
              {Part::kPrefill, sampled.began_at, sampled.ended_at}}, out);
  if (source.is_local()) {
    const bool is_wanted = entry.target && entry.target->attempt() == source.attempt() &&
                           entry.target->state() == Target::State::kFilling;
    if (!is_wanted) {  // the reservation is gone, or of another attempt
      source.on_stale({sampled.request, source.attempt(), 0}, actions);
      carry_out(it->first, entry, actions, out);
    } else {  // adopted: the blocks change their budget and stay where they are
      for (uint32_t c = 0; c < state.choices.size(); ++c) {  // the reservation is for the unfinished
        if (state.choices[c].is_finished) kv_.cut(entry.held, c, source.shape().num_shared() * kv_.block_size());
      }
      entry.decoding = std::move(entry.held);
      entry.held = {};
      kv_.charge_to_private(entry.decoding);
      entry.target->on_local_commit(source.make_commit(), actions);
      carry_out(it->first, entry, actions, out);
      if (entry.target->state() == Target::State::kEnded) end_target(entry);
    }
    entry.holder->unpin();
    entry.source.reset();
  }
  erase_if_empty(sampled.request);
}

// Over the budget the request goes unprotected; its full blocks stay in the prefix cache.
void Node::unpin_over_budget(Entry& entry) {
  if (num_pinned_blocks() > kv_.max_pinned()) entry.holder->unpin();
}

void Node::on_hold(const std::string& gateway, const Hold& hold, NodeActions& out) {
  Entry& entry = entries_[hold.request];
  entry.gateway = gateway;
  const bool is_known = entry.source && entry.source->attempt() >= hold.attempt;
  const bool is_pinned = entry.holder && entry.holder->attempt() >= hold.attempt;
  if (is_known || is_pinned) return erase_if_empty(hold.request);
  end_source_job(entry, out);
  entry.held_token = hold.kv_token;
  if (!entry.holder) {
    entry.holder.emplace(Holder(hold.request, static_cast<uint32_t>(hold.state.choices.size())));
  }
  pin_content(entry, hold.attempt, hold.state);
  const HandoffShape shape = shape_of(hold.state, kv_.block_size(), config_.num_layer_groups);
  const bool has_room = num_pinned_blocks() + shape.num_blocks() <= kv_.max_pinned() &&
                        kv_.fit(entry.held, shape, kv::Part::kShared);
  if (!has_room) entry.holder->unpin();  // frames will get MirrorStop
  erase_if_empty(hold.request);
}

void Node::on_mirror(const NodeRef& from, const Mirror& frame, NodeActions& out) {
  const auto it = entries_.find(frame.request);
  if (it == entries_.end()) {
    out.push_back(SendPeer{from, MirrorStop{frame.request, frame.attempt}});
    return;
  }
  Entry& entry = it->second;
  if (!entry.holder) {  // a target of a newer attempt, perhaps: the frame's sender is superseded then
    if (entry.target && entry.target->attempt() > frame.attempt) {
      return answer_stale(from, frame.request, frame.attempt, out);
    }
    out.push_back(SendPeer{from, MirrorStop{frame.request, frame.attempt}});
    return;
  }
  const bool has_job = entry.source && entry.source->is_running();
  const bool is_next = entry.holder->attempt() == frame.attempt && frame.choice < entry.holder->num_choices() &&
                       frame.from_position == entry.holder->held(frame.choice);
  if (is_next && !has_job) {
    const size_t needed = kv::blocks_for(frame.from_position + static_cast<uint32_t>(frame.tokens.size()),
                                         kv_.block_size());
    while (entry.held.shared.size() + entry.held.own[frame.choice].size() < needed) {
      if (num_pinned_blocks() < kv_.max_pinned() && kv_.append(entry.held, frame.choice, kv::Part::kShared)) continue;
      entry.holder->unpin();
      out.push_back(SendPeer{from, MirrorStop{frame.request, frame.attempt}});
      return erase_if_empty(frame.request);
    }
  }
  Actions actions;
  entry.holder->on_mirror(frame, has_job, from, actions);
  carry_out(it->first, entry, actions, out);
}

void Node::on_release(const Release& release, NodeActions& out) {
  const auto it = entries_.find(release.request);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  if (entry.source && entry.source->attempt() <= release.upto_attempt) end_source_job(entry, out);
  if (entry.holder) entry.holder->on_release(release.upto_attempt);
  if (entry.target && entry.target->attempt() <= release.upto_attempt) {
    if (entry.target->state() == Target::State::kDecoding) out.push_back(StopDecoding{release.request});
    end_target(entry);
  }
  erase_if_empty(release.request);
}

// ---- data plane and engine

uint64_t Node::token_to_show(const PeerMessage& message) const {
  const auto it = entries_.find(std::visit([](const auto& m) { return m.request; }, message));
  if (it == entries_.end()) return 0;
  const Entry& entry = it->second;
  const bool is_of_target = std::holds_alternative<Mirror>(message) || std::holds_alternative<CommitAck>(message);
  const uint64_t own = entry.target ? entry.target->kv_token() : 0;
  if (is_of_target || entry.held_token == 0) return own;
  return entry.held_token;
}

bool Node::is_let_in(const Id& request, uint64_t token) const {
  const auto it = entries_.find(request);
  if (it == entries_.end() || token == 0) return false;
  // Whole words, so the time says nothing of how much of it was right.
  const uint64_t own = it->second.target ? it->second.target->kv_token() : 0;
  return ((own ^ token) == 0) | ((it->second.held_token ^ token) == 0);
}

void Node::on_push(const NodeRef& from, const Push& push, uint64_t checksum, NodeActions& out) {
  const auto it = entries_.find(push.request);
  Actions actions;
  const bool has_target = it != entries_.end() && it->second.target;
  if (test_only.has_no_push_fence) {
    const auto landing = test_only_landings_.find(push.landing);
    if (landing != test_only_landings_.end() && push.block < landing->second.size()) {
      out.push_back(CopyBlock{landing->second[push.block], push.layer_group, push.payload});
    }
  }
  if (!has_target) return answer_stale(from, push.request, push.attempt, out);
  it->second.target->on_push(push, checksum, from, actions);
  carry_out(it->first, it->second, actions, out);
  if (it->second.target->state() == Target::State::kEnded) end_target(it->second);
  erase_if_empty(push.request);
}

void Node::on_peer_message(const NodeRef& from, const PeerMessage& message, uint64_t checksum, Nanos now,
                           NodeActions& out) {
  now_ = now;
  if (const auto* push = std::get_if<Push>(&message)) return on_push(from, *push, checksum, out);
  if (const auto* frame = std::get_if<Mirror>(&message)) return on_mirror(from, *frame, out);
  const Id id = std::visit([](const auto& m) { return m.request; }, message);
  const auto it = entries_.find(id);
  if (it == entries_.end()) {
    if (const auto* commit = std::get_if<Commit>(&message)) answer_stale(from, id, commit->attempt, out);
    return;
  }
  Entry& entry = it->second;
  Actions actions;
  if (const auto* commit = std::get_if<Commit>(&message)) {
    if (!entry.target) return answer_stale(from, id, commit->attempt, out);
    const auto waited = static_cast<Nanos>(std::min<uint64_t>(commit->sampled_ago_ns, static_cast<uint64_t>(now)));
    if (entry.marks.prefilled_at == 0 && commit->attempt == entry.target->attempt()) {
      entry.marks.prefilled_at = now - waited;
    }
    entry.target->on_commit(*commit, from, actions);
  } else if (const auto* ack = std::get_if<CommitAck>(&message)) {
    if (entry.source && from == entry.source->target()) {
      entry.source->on_commit_ack(ack->attempt);
      if (entry.source->state() == Source::State::kDone) {
        tell_parts(id, entry, ack->attempt, {{Part::kPush, std::exchange(entry.marks.sampled_at, 0), now}}, out);
        unpin_over_budget(entry);
      }
    }
  } else if (const auto* stale = std::get_if<Stale>(&message)) {
    if (entry.source && from == entry.source->target()) entry.source->on_stale(*stale, actions);
    if (entry.target) entry.target->on_stale(*stale, from, actions);
  } else if (const auto* mirror_ack = std::get_if<MirrorAck>(&message)) {
    if (entry.target) entry.target->on_mirror_ack(*mirror_ack, from, actions);
  } else if (const auto* stop = std::get_if<MirrorStop>(&message)) {
    if (entry.target) entry.target->on_mirror_stop(*stop, from);
  }
  carry_out(id, entry, actions, out);
  if (entry.target && entry.target->state() == Target::State::kEnded) end_target(entry);
  erase_if_empty(id);
}

void Node::on_peer_lost(const NodeRef& peer, Nanos, NodeActions& out) {
  std::vector<Id> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  for (const Id& id : ids) {
    Entry& entry = entries_.at(id);
    Actions actions;
    if (entry.source) entry.source->on_connection_lost(peer, actions);
    if (entry.target) entry.target->on_connection_lost(peer);
    carry_out(id, entry, actions, out);
    erase_if_empty(id);
  }
}

void Node::on_engine(const EngineNews& news, Nanos now, NodeActions& out) {
  now_ = now;
  if (const auto* step = std::get_if<StepTokens>(&news)) return on_step_tokens(*step, out);
  if (const auto* sampled = std::get_if<Sampled>(&news)) return on_sampled(*sampled, now, out);
  if (const auto* failed = std::get_if<JobFailed>(&news)) return on_job_failed(*failed, out);
  const auto& parts = std::get<PartsComputed>(news);
  const auto it = entries_.find(parts.request);
  if (it == entries_.end() || !it->second.source || it->second.source->attempt() != parts.attempt) return;
  Actions actions;
  for (const uint32_t block : parts.blocks) it->second.source->on_computed(block, parts.layer_group, actions);
  carry_out(it->first, it->second, actions, out);
}

}  // namespace tandem::role
