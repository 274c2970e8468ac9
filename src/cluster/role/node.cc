// A node's sessions, its loop, and how a machine's actions become the node's.
#include "cluster/role/node.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::role {

using namespace handoff;

Node::Node(NodeConfig config) : config_(std::move(config)), kv_(config_.pool, config_.max_pinned_blocks) {
  if (config_.has_engine_beside) kv_.wait_for_steps();
  if (!config_.caches_prefixes) kv_.disable_cache();
}

void Node::send_to_gateway(const std::string& gateway, SessionMessage message, NodeActions& out) {
  const NodeSessions::Session* session = sessions_.find(gateway);
  if (session) out.push_back(SendSession{gateway, session->stream, std::move(message)});
}

void Node::answer_stale(const NodeRef& from, const Id& id, Attempt attempt, NodeActions& out) {
  ++num_stale_;
  Attempt newest = 0;
  if (const auto it = entries_.find(id); it != entries_.end()) {
    const Entry& entry = it->second;
    if (entry.target) newest = entry.target->attempt();
    if (entry.holder) newest = std::max(newest, entry.holder->attempt());
  }
  out.push_back(SendPeer{from, Stale{id, attempt, newest}});
}

void Node::on_hello(const std::string& gateway, uint64_t stream, const Hello& hello, Nanos now, NodeActions& out) {
  switch (sessions_.on_hello(hello.from, hello.session, stream, now)) {
    case NodeSessions::HelloResult::kRefused: out.push_back(CloseSession{gateway, stream}); return;
    case NodeSessions::HelloResult::kReplaces:
      if (!test_only.has_no_session_fence) drop_of(gateway, out);
      break;
    case NodeSessions::HelloResult::kFirst: break;
  }
  last_beat_[gateway] = {now, false};
  send_to_gateway(gateway,
                  Hello{kProtoExtendedRequests, config_.self, hello.session, config_.fingerprint, config_.role,
                        config_.role_epoch, config_.pool.num_blocks, config_.credits, kv_.num_private()},
                  out);
}

void Node::on_session_message(const std::string& gateway, uint64_t stream, const SessionMessage& message, Nanos now,
                              NodeActions& out) {
  now_ = now;
  if (const auto* hello = std::get_if<Hello>(&message)) return on_hello(gateway, stream, *hello, now, out);
  if (!sessions_.heard(gateway, stream, now)) {  // its session is over: nothing it says counts
    out.push_back(CloseSession{gateway, stream});
    return;
  }
  if (makes_work(message)) last_beat_[gateway].was_busy = true;  // a beat is due soon, even if nothing comes of it
  if (const auto* reserve = std::get_if<Reserve>(&message)) on_reserve(gateway, *reserve, now, out);
  else if (const auto* prefill = std::get_if<Prefill>(&message)) on_prefill(gateway, *prefill, now, out);
  else if (const auto* hold = std::get_if<Hold>(&message)) on_hold(gateway, *hold, out);
  else if (const auto* release = std::get_if<Release>(&message)) on_release(*release, out);
  else if (std::holds_alternative<ForgetPrefixes>(message)) kv_.drop_cache();
  else if (const auto* mirror = std::get_if<SetMirror>(&message)) {
    const auto it = entries_.find(mirror->request);
    if (it == entries_.end() || !it->second.target) return;
    Actions actions;
    it->second.target->on_set_mirror(*mirror, actions);
    carry_out(it->first, it->second, actions, out);
  }
}

// The gateway may come back with a newer Hello; until then, or until the lease ends, what it has here stays.
void Node::on_session_closed(const std::string&, uint64_t, Nanos, NodeActions&) {}

void Node::drop_of(const std::string& gateway, NodeActions& out) {
  std::vector<Id> ids;
  for (const auto& [id, entry] : entries_) {
    if (entry.gateway == gateway) ids.push_back(id);
  }
  for (const Id& id : ids) {
    drop(id, entries_.at(id), out);
    entries_.erase(id);
  }
}

void Node::drop(const Id& id, Entry& entry, NodeActions& out) {
  end_source_job(entry, out);
  if (entry.target && entry.target->state() == Target::State::kDecoding) out.push_back(StopDecoding{id});
  end_target(entry);
  kv_.release(entry.held);
}

void Node::erase_if_empty(const Id& id) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || test_only.keeps_entries) return;
  Entry& entry = it->second;
  const bool has_job = entry.source && entry.source->is_running();
  const bool is_held = entry.holder && entry.holder->is_pinned();
  if (!has_job && !is_held) {
    kv_.release(entry.held);  // what is published stays as cache
    entry.holder.reset();
  }
  if (!has_job && !is_held && !entry.target) entries_.erase(it);
}

size_t Node::num_entries_of(const std::string& gateway) const {
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [&](const auto& entry) { return entry.second.gateway == gateway; }));
}

bool Node::is_decoding() const {
  return std::ranges::any_of(entries_, [](const auto& entry) {
    return entry.second.target && entry.second.target->state() == Target::State::kDecoding;
  });
}

Attempt Node::decoding_attempt(const Id& request) const {
  const auto it = entries_.find(request);
  const bool is_decoding = it != entries_.end() && it->second.target &&
                           it->second.target->state() == Target::State::kDecoding;
  return is_decoding ? it->second.target->attempt() : 0;
}

Attempt Node::source_attempt(const Id& request) const {
  const auto it = entries_.find(request);
  const bool has_job = it != entries_.end() && it->second.source && it->second.source->is_running();
  return has_job ? it->second.source->attempt() : 0;
}

uint32_t Node::num_pinned_blocks() const {
  uint32_t pinned = 0;
  for (const auto& [id, entry] : entries_) {
    const bool has_job = entry.source && entry.source->is_running();
    if (!has_job && entry.holder && entry.holder->is_pinned()) pinned += entry.held.size();
  }
  return pinned;
}

uint32_t Node::mirror_lag() const {
  uint32_t lag = 0;
  for (const auto& [id, entry] : entries_) {
    const bool is_mirrored = entry.target && entry.target->state() == Target::State::kDecoding &&
                             entry.target->is_mirrored();
    if (is_mirrored) lag = std::max(lag, entry.target->mirror_lag());
  }
  return lag;
}

void Node::tell_parts(const Id& id, const Entry& entry, Attempt attempt, std::initializer_list<MeasuredPart> parts,
                      NodeActions& out) {
  Timings timings{id, attempt, {}};
  for (const MeasuredPart& part : parts) {
    if (part.began_at == 0 || part.ended_at < part.began_at || now_ < part.ended_at) continue;
    timings.parts.push_back({part.part, static_cast<uint64_t>(now_ - part.ended_at),
                             static_cast<uint64_t>(part.ended_at - part.began_at)});
  }
  if (!timings.parts.empty()) send_to_gateway(entry.gateway, std::move(timings), out);
}

// What a machine wants, with blocks in place of numbers.
void Node::carry_out(const Id& id, Entry& entry, Actions& actions, NodeActions& out) {
  for (Action& action : actions) {
    if (auto* to_gateway = std::get_if<ToGateway>(&action)) {
      send_to_gateway(entry.gateway, std::move(to_gateway->message), out);
    } else if (auto* to_peer = std::get_if<ToPeer>(&action)) {
      num_stale_ += std::holds_alternative<Stale>(to_peer->message);
      if (auto* commit = std::get_if<Commit>(&to_peer->message)) {
        const Nanos sampled_at = entry.marks.sampled_at;
        commit->sampled_ago_ns = static_cast<uint64_t>(sampled_at == 0 ? 0 : std::max<Nanos>(now_ - sampled_at, 0));
      }
      out.push_back(SendPeer{to_peer->peer, std::move(to_peer->message)});
    } else if (const auto* copy = std::get_if<CopyIn>(&action)) {
      out.push_back(CopyBlock{entry.decoding.at(entry.target->shape(), copy->block), copy->layer_group, copy->payload});
    } else if (const auto* push = std::get_if<PushPart>(&action)) {
      const Push frame{id, entry.source->attempt(), push->landing, push->block, push->layer_group, 0, {}};
      out.push_back(SendBlock{push->peer, frame, entry.held.at(entry.source->shape(), push->block)});
    } else if (auto* mirror = std::get_if<SendMirror>(&action)) {
      const Mirror& frame = mirror->frame;
      std::vector<Slots> slots = slots_of(entry.decoding, frame.choice, frame.from_position,
                                          static_cast<uint32_t>(frame.tokens.size()), kv_.block_size());
      out.push_back(SendKv{mirror->holder, std::move(mirror->frame), std::move(slots), mirror->is_catch_up});
    } else if (const auto* append = std::get_if<AppendMirror>(&action)) {
      out.push_back(CopyKv{slots_of(entry.held, append->choice, append->from_position,
                                    static_cast<uint32_t>(append->tokens.size()), kv_.block_size()),
                           append->payload});
    } else if (const auto* begin = std::get_if<BeginDecode>(&action)) {
      begin_decode(id, entry, begin->state, out);
    } else if (std::holds_alternative<AbortPrefill>(action)) {
      out.push_back(StopPrefill{id});
    } else if (std::holds_alternative<StopDecode>(action)) {
      out.push_back(StopDecoding{id});
    }
  }
  actions.clear();
}

Beat Node::make_beat(const std::string& gateway, const EngineProgress& progress) {
  Beat beat;
  beat.io_seq = ++io_seq_;
  beat.step_seq = progress.step_seq;
  beat.step_running_ms = progress.step_running_ms;
  beat.step_predicted_ms = progress.step_predicted_ms;
  beat.private_free = kv_.num_private() - std::min(kv_.num_private(), kv_.reserved());
  beat.shared_free = kv_.pool().num_available(kv::Part::kShared);
  beat.credits = is_draining_ ? 0 : config_.credits;
  beat.is_draining = is_draining_;
  beat.config_revision = config_revision_;
  beat.is_busy = num_entries_of(gateway) > 0;
  for (const auto& [id, entry] : entries_) {
    const bool is_decoding = entry.target && entry.target->state() == Target::State::kDecoding;
    beat.num_running += is_decoding;
    beat.num_waiting += entry.source && entry.source->is_running();
    if (!is_decoding || entry.gateway != gateway || !entry.target->is_mirrored()) continue;
    beat.mirrored.push_back({id, entry.target->attempt(), entry.target->holder(), entry.target->mirror_lag()});
  }
  return beat;
}

void Node::send_beats(const EngineProgress& progress, Nanos now, NodeActions& out) {
  for (const auto& [gateway, session] : sessions_.all()) {
    const bool is_busy = num_entries_of(gateway) > 0;
    LastBeat& last = last_beat_[gateway];
    // Whoever was busy says soon that it no longer is, or its silence would be taken for a death.
    const Nanos every = is_busy || last.was_busy ? config_.timing.node_beat_busy : config_.timing.node_beat_idle;
    if (now - last.at < every) continue;
    last = {now, is_busy};
    send_to_gateway(gateway, make_beat(gateway, progress), out);
  }
}

void Node::on_tick(const EngineProgress& progress, Nanos now, NodeActions& out) {
  now_ = now;
  if (!test_only.has_no_lease) {
    for (const std::string& gateway : sessions_.expire(now, config_.timing)) {
      drop_of(gateway, out);
      last_beat_.erase(gateway);
    }
  }
  std::vector<Id> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  for (const Id& id : ids) {
    Entry& entry = entries_.at(id);
    if (entry.waits_for_room) try_start_prefill(entry, out);
    Actions actions;
    if (entry.source) entry.source->on_tick(now, actions);
    if (test_only.opens_gate_by_time && entry.target && now - entry.reserved_at > 30 * kMs) {
      entry.target->test_only_open_gate();
    }
    carry_out(id, entry, actions, out);
    erase_if_empty(id);
  }
  send_beats(progress, now, out);
}

void Node::check_invariants() const {
  std::vector<uint32_t> owners(kv_.pool().num_blocks(), 0);
  uint32_t reserved = 0;
  const auto count = [&](const KvTables& tables) {
    for (const kv::BlockId block : tables.shared) ++owners[kv::index(block)];
    for (const auto& blocks : tables.own) {
      for (const kv::BlockId block : blocks) ++owners[kv::index(block)];
    }
  };
  for (const auto& [id, entry] : entries_) {
    count(entry.held);
    count(entry.decoding);
    reserved += entry.reserved;
  }
  kv_.count_waiting(owners);
  kv_.pool().check_invariants(owners);
  TANDEM_CHECK(reserved + kv_.num_unreserved_waiting() == kv_.reserved());
}

std::string Node::dump() const {
  std::string text = config_.self.id + ": " + std::to_string(entries_.size()) + " requests, reserved " +
                     std::to_string(kv_.reserved()) + "/" + std::to_string(kv_.num_private()) + "\n";
  for (const auto& [id, entry] : entries_) {
    text += "  " + std::to_string(id.low) + " of " + entry.gateway;
    if (entry.source) {
      text += " source a" + std::to_string(entry.source->attempt()) + " state " +
              std::to_string(static_cast<int>(entry.source->state()));
    }
    if (entry.waits_for_room) text += " waits for room";
    if (entry.holder) text += " pin a" + std::to_string(entry.holder->attempt());
    if (entry.target) {
      text += " target a" + std::to_string(entry.target->attempt()) + " state " +
              std::to_string(static_cast<int>(entry.target->state())) + " parts " +
              std::to_string(entry.target->received().count()) + "/" +
              std::to_string(entry.target->received().size());
    }
    text += " held " + std::to_string(entry.held.size()) + " decoding " + std::to_string(entry.decoding.size()) + "\n";
  }
  return text;
}

}  // namespace tandem::role
