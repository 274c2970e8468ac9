// The gateway's sessions, its loop, and how a request's actions become the gateway's.
#include "cluster/role/gateway.h"

#include <algorithm>
#include <utility>

namespace tandem::role {

using namespace handoff;

template <class Event>
void Gateway::with_request(const RequestId& id, Nanos now, GatewayOuts& out, Cause cause, const Event& event) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  GatewayRequest& request = *it->second;
  GatewayActions actions;
  const uint64_t mismatches = request.num_mismatches(), stale = request.num_stale();
  const GatewayRequest::Phase phase = request.phase();
  const Attempt attempt = request.attempt();
  event(request, GatewayRequest::Context{*this, config_.timing, now, actions});
  num_mismatches_ += request.num_mismatches() - mismatches;
  num_stale_ += request.num_stale() - stale;
  recount(request);
  if (request.phase() != phase || request.attempt() != attempt) {
    out.push_back(RequestMoved{id, phase, request.phase(), request.attempt(), request.attempt() != attempt, cause});
  }
  carry_out(actions, now, out);
}

void Gateway::carry_out(GatewayActions& actions, Nanos now, GatewayOuts& out) {
  for (GatewayAction& action : actions) {
    if (auto* to_node = std::get_if<ToNode>(&action)) {
      const auto it = links_.find(to_node->node);
      if (it == links_.end() || it->second.state != LinkState::kOpen) continue;
      if (test_only.never_releases && std::holds_alternative<Release>(to_node->message)) continue;
      // Only the first: a node that never answers would put its own suspicion off.
      if (it->second.told_at == 0 && makes_work(to_node->message)) it->second.told_at = now;
      out.push_back(SendNode{to_node->node, it->second.stream, std::move(to_node->message)});
    } else if (const auto* emit = std::get_if<Emit>(&action)) {
      out.push_back(DeliverToken{emit->entry});
    } else if (const auto* failed = std::get_if<PairFailed>(&action)) {
      if (!test_only.forgets_bad_pairs) bad_pairs_.failed(failed->source, failed->target, now, config_.timing);
    } else if (const auto* worked = std::get_if<PairWorked>(&action)) {
      bad_pairs_.worked(worked->source, worked->target);
    } else if (auto* ended = std::get_if<EndRequest>(&action)) {
      out.push_back(RequestEnded{ended->request, ended->error, std::move(ended->message)});
    }
  }
  actions.clear();
}

void Gateway::sweep() {
  std::erase_if(requests_, [this](const auto& r) {
    const bool is_done = r.second->phase() == GatewayRequest::Phase::kDone;
    if (is_done) {
      work_.erase(r.first);
      const auto tenant = tenants_.find(r.first);
      shares_.leave(tenant->second);
      tenants_.erase(tenant);
      if (router_) router_->forget(r.first);
    }
    return is_done;
  });
}

Status Gateway::submit(RequestId id, RequestState state, Nanos now, Ask ask) {
  if (requests_.size() >= config_.max_requests) return Error{ErrorCode::kExhausted, "the queue is full"};
  if (state.prompt.empty() || state.choices.empty()) return Error{ErrorCode::kInvalidArgument, "an empty prompt"};
  const GatewayRequest::Options options{config_.is_mirrored, config_.does_holder_adopt, state.max_tokens, ask.deadline,
                                        ask.priority,        std::move(ask.traceparent)};
  auto request = std::make_unique<GatewayRequest>(id, std::move(state), options, now);
  request->test_only = {test_only.has_no_attempt_fence, test_only.has_no_new_attempt};
  if (!requests_.emplace(id, std::move(request)).second) return Error{ErrorCode::kInvalidArgument, "the id is in use"};
  shares_.enter(ask.tenant);
  tenants_.emplace(id, std::move(ask.tenant));
  return Done{};
}

void Gateway::cancel(const RequestId& id, Nanos now, GatewayOuts& out) {
  with_request(id, now, out, Cause::kPlanned, [](GatewayRequest& request, const auto& context) {
    request.cancel(context, ErrorCode::kCancelled, "cancelled by the client");
  });
  sweep();
}

void Gateway::add_node(const std::string& id) {
  NodeLink& link = links_.try_emplace(id).first->second;
  link.is_retired = link.is_removed = false;
  link.reopen_pause = link.retry_at = 0;
}

void Gateway::retire_node(const std::string& id) {
  const auto it = links_.find(id);
  if (it != links_.end()) it->second.is_retired = true;
}

void Gateway::remove_node(const std::string& id) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  it->second.is_retired = it->second.is_removed = true;
  if (it->second.state != LinkState::kOpen) note_death(it->second);
}

void Gateway::set_role(const std::string& node, Role role, uint64_t role_epoch, Nanos now, GatewayOuts& out) {
  const auto it = links_.find(node);
  if (it == links_.end() || role_epoch <= it->second.hello.role_epoch) return;
  it->second.hello.role = role;
  it->second.hello.role_epoch = role_epoch;
  if (role != Role::kPrefill) return;
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) {
    if (request->target().id == node) ids.push_back(id);
  }
  for (const RequestId& id : ids) move(id, now, out);
}

void Gateway::open(const std::string& node, NodeLink& link, Nanos now, GatewayOuts& out) {
  link.state = LinkState::kOpening;
  link.stream = next_stream_++;
  link.opened_at = now;
  out.push_back(OpenStream{node, link.stream});
  Hello hello;
  hello.from = config_.self;
  hello.session = {config_.self.incarnation, link.hello.from.incarnation, link.stream};
  out.push_back(SendNode{node, link.stream, hello});
}

void Gateway::on_hello(const std::string& node, NodeLink& link, const Hello& hello, Nanos now, GatewayOuts&) {
  if (link.state != LinkState::kOpening) return;
  const bool is_restarted = hello.from.incarnation != link.hello.from.incarnation;
  if (is_restarted) {  // nothing of the old process is trusted
    bad_pairs_.forget(node);
    link.opened_at = now;
    link.is_draining = false;
    link.stuck_in_step.reset();
    link.patience = 1;
  }
  if (is_restarted) note_death(link);
  if (router_) {
    link.router_index = router_->add(node);
    if (is_restarted) router_->forget_cache(*link.router_index);
  }
  for (const auto& [id, request] : requests_) request->on_process_lives(hello.from);
  num_false_suspicions_ += link.was_silent && !is_restarted;
  link.was_silent = false;
  link.state = LinkState::kOpen;
  link.reopen_pause = 0;
  link.hello = hello;
  link.beat = {};
  link.beat.credits = hello.credits;
  link.gaps = {};
  link.gaps.heard(now);
  link.progressed_at = now;
}

void Gateway::on_beat(const std::string& node, NodeLink& link, const Beat& beat, Nanos now, GatewayOuts& out) {
  const bool has_ended_step = beat.step_seq != link.beat.step_seq;
  if (has_ended_step) link.stuck_backoff = 0;
  // It was slow, perhaps beside others on the same cores. Its work was lost for nothing, and the next node's may be as
  // slow: without more patience a request would go from one to the other for ever.
  if (link.stuck_in_step && beat.step_seq > *link.stuck_in_step) {
    link.stuck_in_step.reset();
    link.patience = std::min(2 * link.patience, config_.timing.longest_patience);
  }
  // A slow machine's step may outlast every deadline; as long as it is not stuck, it gets on.
  const bool is_in_step = beat.step_running_ms > 0 && !is_stuck(beat, config_.timing, link.patience);
  if (has_ended_step || is_in_step) link.progressed_at = now;
  link.beat = beat;
  // One that was under way when the node got its work says nothing of it.
  if (beat.is_busy || 2 * (now - link.told_at) > config_.timing.node_beat_busy) link.told_at = 0;
  link.is_draining |= beat.is_draining;
  for (const MirrorProgress& progress : beat.mirrored) {
    with_request(progress.request, now, out, Cause::kPlanned, [&](GatewayRequest& request, const auto& context) {
      request.on_mirror_progress(node, progress, context);
    });
  }
  if (!is_stuck(beat, config_.timing, link.patience) || link.num_requests == 0) return;
  link.stuck_in_step = beat.step_seq;
  link.stuck_backoff = std::clamp(2 * link.stuck_backoff, 10 * config_.timing.reopen, 300 * config_.timing.reopen);
  suspect(node, now, out, Cause::kStuck);
  link.retry_at = now + link.stuck_backoff;
}

void Gateway::on_batch(const std::string& node, const TokenBatch& batch, Nanos now, GatewayOuts& out) {
  for (const TokenEntry& entry : batch.entries) {
    with_request(entry.request, now, out, Cause::kProgress,
                 [&](GatewayRequest& request, const auto& context) { request.on_token(node, entry, context); });
  }
}

void Gateway::on_stream_message(const std::string& node, uint64_t stream, const SessionMessage& message, Nanos now,
                                GatewayOuts& out) {
  now_ = now;
  const auto it = links_.find(node);
  if (it == links_.end()) return;
  NodeLink& link = it->second;
  const bool is_current = link.stream == stream && link.state != LinkState::kClosed;
  num_stale_ += !is_current;
  if (!is_current && !test_only.has_no_session_fence) return;
  if (is_current) link.gaps.heard(now);
  if (const auto* hello = std::get_if<Hello>(&message)) {
    if (is_current) on_hello(node, link, *hello, now, out);
  } else if (const auto* beat = std::get_if<Beat>(&message)) {
    if (is_current) on_beat(node, link, *beat, now, out);
  } else if (const auto* batch = std::get_if<TokenBatch>(&message)) {
    on_batch(node, *batch, now, out);
  } else if (const auto* timings = std::get_if<Timings>(&message)) {
    if (is_current) out.push_back(NodeTimings{node, *timings});
  } else if (const auto* first = std::get_if<First>(&message)) {
    with_request(first->entry.request, now, out, Cause::kProgress,
                 [&](GatewayRequest& request, const auto& context) { request.on_token(node, first->entry, context); });
  } else {
    RequestId id;
    Cause cause = Cause::kProgress;
    if (const auto* ok = std::get_if<ReserveOk>(&message))
      id = ok->request;
    else if (const auto* no = std::get_if<ReserveNo>(&message))
      id = no->request, cause = Cause::kFailed;
    else if (const auto* running = std::get_if<Running>(&message))
      id = running->request;
    else if (const auto* failed = std::get_if<XferFailed>(&message))
      id = failed->request, cause = Cause::kTransfer;
    else if (const auto* error = std::get_if<Failed>(&message))
      id = error->request, cause = Cause::kFailed;
    with_request(id, now, out, cause,
                 [&](GatewayRequest& request, const auto& context) { request.on_message(node, message, context); });
  }
  sweep();
}

void Gateway::note_death(const NodeLink& link) {
  for (const auto& [id, request] : requests_) request->on_process_died(link.hello.from);
}

void Gateway::on_stream_closed(const std::string& node, uint64_t stream, Nanos now, GatewayOuts& out, bool is_refused) {
  const auto it = links_.find(node);
  if (it == links_.end() || it->second.stream != stream || it->second.state == LinkState::kClosed) return;
  if (is_refused) note_death(it->second);
  suspect(node, now, out, Cause::kClosed);
}

void Gateway::suspect(const std::string& node, Nanos now, GatewayOuts& out, Cause cause) {
  now_ = now;
  const auto it = links_.find(node);
  if (it == links_.end() || it->second.state == LinkState::kClosed) return;
  NodeLink& link = it->second;
  out.push_back(CloseStream{node, link.stream});
  close(link, now);
  const bool is_broken = cause == Cause::kClosed && !link.is_draining;  // one that drains ends because it shall
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) {
    if (request->involves(node)) ids.push_back(id);
  }
  for (const RequestId& id : ids) {
    with_request(id, now, out, cause, [&](GatewayRequest& request, const auto& context) {
      request.on_session_closed(node, is_broken, context);
    });
  }
}

// A dead node's record may stay for long: its address is tried ever more rarely.
void Gateway::close(NodeLink& link, Nanos now) {
  const Timing& timing = config_.timing;
  if (link.state == LinkState::kOpen)
    link.lost_at = now;
  else
    link.reopen_pause = std::clamp(2 * link.reopen_pause, timing.reopen, std::max(timing.reopen, timing.reopen_max));
  link.state = LinkState::kClosed;
  link.retry_at = now + std::max(timing.reopen, link.reopen_pause);
}

// Silence beyond what the node's own beats allow, the gateway's own stalls taken off.
void Gateway::watch(Nanos now, GatewayOuts& out) {
  SilenceCount count;
  std::vector<std::string> silent;
  for (auto& [node, link] : links_) {
    if (link.state == LinkState::kOpening && now - link.opened_at >= config_.timing.open_timeout) {
      out.push_back(CloseStream{node, link.stream});
      close(link, now);
    }
    if (link.state != LinkState::kOpen) continue;
    // Only a node that knows of work beats fast: it said so, or has been told since.
    const bool has_work = link.num_requests > 0 && (link.beat.is_busy || link.told_at != 0);
    const Nanos last = std::max(link.gaps.last_heard(), link.told_at);
    const Nanos silence = now - last - own_stall_.largest_since(last);
    const Nanos limit = has_work ? link.gaps.suspect_after(config_.timing) : config_.timing.suspect_idle;
    count.num_busy += has_work;
    if (silence <= limit) continue;
    count.num_silent += has_work;
    silent.push_back(node);
  }
  if (silent.empty()) {
    blames_itself_ = false;
    return;
  }
  if (is_own_fault(count) && !blames_itself_) {
    blames_itself_ = true;
    blames_itself_until_ = now + config_.timing.self_blame;
  }
  if (blames_itself_ && now < blames_itself_until_) return;
  for (const std::string& node : silent) {
    ++num_suspicions_;
    links_.at(node).was_silent = true;
    suspect(node, now, out);
  }
}

// Decodes leave nodes that drain, one step at a time: the mirror first.
void Gateway::move_away(Nanos now, GatewayOuts& out) {
  for (const auto& [id, request] : requests_) {
    const auto link = links_.find(request->target().id);
    if (link != links_.end() && link->second.is_draining) move(id, now, out);
  }
}

void Gateway::move(const RequestId& id, Nanos now, GatewayOuts& out) {
  now_ = now;
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->is_moving()) return;
  if (it->second->phase() != GatewayRequest::Phase::kDecoding) return;
  PlacementQuery query;
  query.request = id;  // not to a node that does not know all of it
  query.is_first_attempt = false;
  query.not_target.insert(it->second->target().id);
  const std::optional<Placed> placed = place(query);
  if (!placed) return;
  with_request(id, now, out, Cause::kPlanned,
               [&](GatewayRequest& request, const auto& context) { request.move_to(placed->target, context); });
}

void Gateway::drain(const std::string& node) {
  const auto it = links_.find(node);
  if (it != links_.end()) it->second.is_draining = true;
}

void Gateway::forget_prefixes(GatewayOuts& out) {
  for (const auto& [node, link] : links_) {
    if (router_ && link.router_index) router_->forget_cache(*link.router_index);
    if (link.state == LinkState::kOpen) out.push_back(SendNode{node, link.stream, ForgetPrefixes{}});
  }
}

// What waits for a place goes last. No tick adds or removes a request.
void Gateway::tick_requests(Nanos now, GatewayOuts& out) {
  const auto tick = [](GatewayRequest& request, const auto& context) { request.on_tick(context); };
  Lanes lanes;
  for (const auto& [id, request] : requests_) {
    if (request->phase() != GatewayRequest::Phase::kQueued)
      with_request(id, now, out, Cause::kTimeout, tick);
    else
      lanes[tenants_.at(id)].emplace_back(request->queue_rank(config_.priority_step), id);
  }
  for (auto& [tenant, queued] : lanes) std::sort(queued.rbegin(), queued.rend());
  tick_queue(std::move(lanes), now, out);
}

// By turns of the tenants, the one first that got the fewest tokens by its weight; each one's by arrival and priority,
// so that every wait is bounded.
void Gateway::tick_queue(Lanes lanes, Nanos now, GatewayOuts& out) {
  using Phase = GatewayRequest::Phase;
  while (!lanes.empty()) {
    const auto turn = std::min_element(lanes.begin(), lanes.end(), [this](const auto& a, const auto& b) {
      return shares_.of(a.first).goes_before(shares_.of(b.first));
    });
    const RequestId id = turn->second.back().second;
    no_room_for_.reset();
    with_request(id, now, out, Cause::kProgress,
                 [](GatewayRequest& ticked, const auto& context) { ticked.on_tick(context); });
    const GatewayRequest& request = *requests_.at(id);
    const bool has_begun = request.phase() != Phase::kQueued && request.phase() != Phase::kDone;
    if (has_begun) shares_.charge(turn->first, static_cast<double>(request.state().prompt.size()));
    is_queue_held_ |= no_room_for_ == id && now - request.asked_at() > config_.patience;
    turn->second.pop_back();
    if (turn->second.empty()) lanes.erase(turn);
  }
  is_queue_held_ = false;
}

void Gateway::on_tick(Nanos now, GatewayOuts& out) {
  now_ = now;
  own_stall_.looked(now);
  watch(now, out);
  std::erase_if(links_, [](const auto& l) {
    return l.second.is_removed && l.second.state == LinkState::kClosed && l.second.num_requests == 0;
  });
  for (auto& [node, link] : links_) {
    if (link.state == LinkState::kClosed && !link.is_retired && now >= link.retry_at) open(node, link, now, out);
  }
  if (now - last_beat_ >= config_.timing.gateway_beat) {
    last_beat_ = now;
    for (const auto& [node, link] : links_) {
      if (link.state == LinkState::kOpen) out.push_back(SendNode{node, link.stream, Beat{}});
    }
  }
  tick_requests(now, out);
  move_away(now, out);
  sweep();
}

std::string Gateway::dump() const {
  std::string text = config_.self.id + ": " + std::to_string(requests_.size()) + " requests\n";
  for (const auto& [node, link] : links_) {
    text += "  " + node + " link " + std::to_string(static_cast<int>(link.state)) + " stream " +
            std::to_string(link.stream) + (link.is_draining ? " draining" : "") + "\n";
  }
  for (const auto& [id, request] : requests_) {
    text += "  " + std::to_string(id.low) + " phase " + std::to_string(static_cast<int>(request->phase())) + " a" +
            std::to_string(request->attempt()) + " " + request->source().id + ">" + request->target().id + " holder " +
            request->holder().id + "\n";
  }
  return text;
}

}  // namespace tandem::role
