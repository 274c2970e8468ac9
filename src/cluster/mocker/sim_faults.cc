// Clients, faults, and what must hold.
#include <algorithm>

#include "cluster/mocker/sim_cluster.h"

namespace tandem::mocker {

using namespace handoff;

// ---- clients

RequestId SimCluster::submit(uint32_t gateway, std::vector<TokenId> prompt, uint32_t num_choices, uint32_t max_tokens) {
  const RequestId id{gateway, next_request_++};
  if (!gateways_[gateway].policy) return id;
  RequestState state;
  state.prompt = prompt;
  state.sampling.seed = random_.next();
  state.max_tokens = max_tokens;
  state.ignore_eos = config_.runs_to_length;
  state.choices.resize(num_choices);
  ClientRequest client{gateway, std::move(prompt), state.sampling.seed, max_tokens, {}, {}, now(), 0, 0, 0, false,
                       false};
  for (const SimNode& node : nodes_) client.num_dead_nodes += !node.policy;
  client.got.resize(num_choices);
  client.last_token.assign(num_choices, 0);
  const Status accepted = gateways_[gateway].policy->submit(id, std::move(state), gateway_time(gateway));
  client.is_over = !accepted;
  note("client asks " + std::to_string(id.low));
  clients_.emplace(id, std::move(client));
  return id;
}

void SimCluster::cancel(const RequestId& id) {
  const auto it = clients_.find(id);
  if (it == clients_.end() || it->second.is_over || !gateways_[it->second.gateway].policy) return;
  note("client cancels " + std::to_string(id.low));
  it->second.is_cancelled = true;
  role::GatewayOuts outs;
  gateways_[it->second.gateway].policy->cancel(id, gateway_time(it->second.gateway), outs);
  after_gateway_event(it->second.gateway, outs);
}

size_t SimCluster::num_open() const {
  return static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(), [&](const auto& client) {
    return !client.second.is_over && gateways_[client.second.gateway].policy;
  }));
}

void SimCluster::deliver_token(const TokenEntry& entry) {
  const auto it = clients_.find(entry.request);
  if (it == clients_.end()) return;
  ClientRequest& client = it->second;
  ChoiceState& choice = client.got[entry.choice];
  const std::string where = " (request " + std::to_string(entry.request.low) + ", choice " +
                            std::to_string(entry.choice) + ", index " + std::to_string(entry.index) + ")";
  if (entry.index != choice.tokens.size() || choice.is_finished || client.is_over) {
    return violated("I1: a token came twice, or out of order" + where);
  }
  const uint64_t prefix = prefix_hash(client.prompt, choice.tokens, client.prompt.size() + choice.tokens.size());
  const TokenId expected = token_after(prefix, client.seed, entry.choice, 0);
  const bool is_right = config_.has_random_sampling ? (entry.token & kPrefixBits) == expected : entry.token == expected;
  if (!is_right) return violated("I1: a token was not sampled from the emitted prefix" + where);
  choice.tokens.push_back(entry.token);
  choice.is_finished = entry.finish != Finish::kNone;
  if (client.last_token[entry.choice] > 0) {
    gaps_ms_.push_back(static_cast<double>(events_.now() - client.last_token[entry.choice]) / 1e6);
  }
  client.last_token[entry.choice] = events_.now();
  if (client.first_at == 0) client.first_at = events_.now();
  const auto live = gateways_[client.gateway].policy->requests().find(entry.request);
  if (live != gateways_[client.gateway].policy->requests().end()) client.attempts = live->second->attempt();
}

void SimCluster::end_request(const role::RequestEnded& ended) {
  const auto it = clients_.find(ended.request);
  if (it == clients_.end()) return;
  ClientRequest& client = it->second;
  note("ended " + std::to_string(ended.request.low) + " " + ended.message);
  client.is_over = true;
  if (client.attempts > 1) num_recoveries_ += client.attempts - 1;
  if (client.is_cancelled) return;
  if (ended.error) {
    ++num_failed_;
    bool is_any_left = false;
    for (size_t n = 0; n < nodes_.size(); ++n) is_any_left |= is_reachable(n);
    if (!is_any_left) return;  // nothing is promised then
    if (*ended.error == ErrorCode::kInternal && client.num_dead_nodes >= config_.timing.max_deaths) {
      ++num_given_up_;
      return;
    }
    return violated("L1: request " + std::to_string(ended.request.low) + " ended with an error: " + ended.message);
  }
  ++num_completed_;
  const size_t num_tokens = client.got[0].tokens.size();
  const auto ms = [](Nanos from, Nanos to) { return static_cast<double>(to - from) / 1e6; };
  const auto num_gaps = static_cast<double>(num_tokens) - 1;
  served_.push_back({ms(client.asked_at, client.first_at),
                     num_tokens < 2 ? 0.0 : ms(client.first_at, client.last_token[0]) / num_gaps, num_tokens});
  for (const ChoiceState& choice : client.got) {
    if (!choice.is_finished) violated("I1: a stream ended without its last token");
  }
}

// ---- faults

void SimCluster::kill_node(size_t n) {
  SimNode& node = nodes_[n];
  if (!node.policy) return;
  note("KILL " + node.spec.id);
  const NodeRef ref{node.spec.id, node.incarnation};
  for (auto& [id, client] : clients_) ++client.num_dead_nodes;
  // The event that kills a node may be one of its own: its objects live until that has ended.
  events_.after(0, [policy = std::shared_ptr<role::Node>(std::move(node.policy)),
                    engine = std::shared_ptr<MockEngine>(std::move(node.engine)),
                    kv = std::shared_ptr<MockKv>(std::move(node.kv))] {});
  node.is_stopped = false;
  std::vector<ChannelKey> streams;
  for (const auto& [key, incarnation] : streams_) {
    if (key.to == n && incarnation == ref.incarnation) streams.push_back(key);
  }
  for (const ChannelKey& key : streams) send_eof_to_gateway(key);
  for (size_t m = 0; m < nodes_.size(); ++m) {
    const std::pair<size_t, size_t> link{std::min(n, m), std::max(n, m)};
    if (m == n || cut_nodes_.contains(link)) continue;
    connections_.erase(link);
    if (nodes_[m].policy) tell_peer_lost(m, ref);
  }
  net_.wake_all();
}

void SimCluster::restart_node(size_t n) {
  if (nodes_[n].policy) return;
  note("RESTART " + nodes_[n].spec.id);
  start_node(n);
}

void SimCluster::stop_node(size_t n) {
  if (!nodes_[n].policy) return;
  note("SIGSTOP " + nodes_[n].spec.id);
  nodes_[n].is_stopped = true;
}

void SimCluster::continue_node(size_t n) {
  if (!nodes_[n].is_stopped) return;
  note("SIGCONT " + nodes_[n].spec.id);
  nodes_[n].is_stopped = false;
  net_.wake_all();
}

void SimCluster::hang_engine(size_t n) {
  if (!nodes_[n].policy) return;
  note("HANG " + nodes_[n].spec.id);
  nodes_[n].engine->hang();
}

void SimCluster::kill_gateway(size_t g) {
  if (!gateways_[g].policy) return;
  note("KILL " + gateways_[g].id);
  mismatches_of_dead_ += gateways_[g].policy->num_mismatches();
  gateways_[g].policy.reset();
  std::erase_if(streams_, [&](const auto& stream) { return stream.first.from == g; });
}

void SimCluster::stall_gateway(size_t g, Nanos duration) {
  if (!gateways_[g].policy) return;
  note("STALL " + gateways_[g].id);
  gateways_[g].stalled_until = events_.now() + duration;
  events_.after(duration, [this] { net_.wake_all(); });
}

void SimCluster::partition(uint64_t sides) {
  for (size_t a = 0; a < nodes_.size(); ++a) {
    for (size_t b = a + 1; b < nodes_.size(); ++b) {
      if ((sides >> a & 1) != (sides >> b & 1)) cut_between(a, b, true);
    }
  }
}

void SimCluster::cut_from_gateway(size_t g, size_t n, bool is_cut) {
  note(std::string(is_cut ? "CUT " : "HEAL ") + gateways_[g].id + "-" + nodes_[n].spec.id);
  if (is_cut) cut_gateway_.insert({g, n});
  else cut_gateway_.erase({g, n});
  if (!is_cut) net_.wake_all();
}

void SimCluster::break_stream(size_t g, size_t n) {
  note("BREAK " + gateways_[g].id + "-" + nodes_[n].spec.id);
  std::vector<ChannelKey> streams;
  for (const auto& [key, incarnation] : streams_) {
    if (key.from == g && key.to == n) streams.push_back(key);
  }
  for (const ChannelKey& key : streams) send_eof_to_gateway(key);
}

void SimCluster::cut_between(size_t a, size_t b, bool is_cut) {
  if (a == b) return;
  note(std::string(is_cut ? "CUT " : "HEAL ") + nodes_[a].spec.id + "-" + nodes_[b].spec.id);
  const std::pair<size_t, size_t> link{std::min(a, b), std::max(a, b)};
  if (!is_cut) {
    cut_nodes_.erase(link);
    return;
  }
  cut_nodes_.insert(link);
  break_connection(a, b);
}

void SimCluster::suspect(size_t g, size_t n) {
  if (!gateways_[g].policy) return;
  note("FALSE SUSPICION of " + nodes_[n].spec.id);
  role::GatewayOuts outs;
  gateways_[g].policy->suspect(nodes_[n].spec.id, gateway_time(g), outs);
  after_gateway_event(g, outs);
}

void SimCluster::move_request(size_t which) {
  std::vector<std::pair<size_t, RequestId>> decodes;
  for (size_t g = 0; g < gateways_.size(); ++g) {
    if (!gateways_[g].policy) continue;
    for (const auto& [id, request] : gateways_[g].policy->requests()) {
      if (request->phase() == GatewayRequest::Phase::kDecoding) decodes.emplace_back(g, id);
    }
  }
  if (decodes.empty()) return;
  const auto [g, id] = decodes[which % decodes.size()];
  note("MOVE " + std::to_string(id.low));
  role::GatewayOuts outs;
  gateways_[g].policy->move(id, gateway_time(g), outs);
  after_gateway_event(g, outs);
}

void SimCluster::drain(size_t n) {
  if (!nodes_[n].policy) return;
  note("DRAIN " + nodes_[n].spec.id);
  nodes_[n].policy->drain();
}

void SimCluster::heal_all() {
  note("HEAL ALL");
  cut_gateway_.clear();
  cut_nodes_.clear();
  for (size_t n = 0; n < nodes_.size(); ++n) {
    SimNode& node = nodes_[n];
    node.is_stopped = false;
    node.stops_after = node.dies_after = 0;
    if (node.policy && (node.engine->is_hung() || node.policy->is_draining())) kill_node(n);
    if (!node.policy) start_node(n);
  }
  net_.wake_all();
}

// ---- what must hold

bool SimCluster::is_reachable(size_t n) const {
  for (size_t g = 0; g < gateways_.size(); ++g) {
    if (gateways_[g].policy && cut_gateway_.contains({g, n})) return false;
  }
  return is_node_running(n) && !nodes_[n].engine->is_hung() && !nodes_[n].policy->is_draining();
}

uint64_t SimCluster::num_mismatches() const {
  uint64_t count = mismatches_of_dead_;
  for (const SimGateway& gateway : gateways_) {
    if (gateway.policy) count += gateway.policy->num_mismatches();
  }
  return count;
}

uint64_t SimCluster::num_cached_blocks() const {
  uint64_t count = 0;
  for (const SimNode& node : nodes_) count += node.policy ? node.policy->num_cached_blocks() : 0;
  return count;
}

uint64_t SimCluster::num_suspicions() const {
  uint64_t count = 0;
  for (const SimGateway& gateway : gateways_) {
    if (gateway.policy) count += gateway.policy->num_suspicions();
  }
  return count;
}

void SimCluster::violated(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  note("VIOLATED " + what);
}

void SimCluster::check_running() {
  for (const SimGateway& gateway : gateways_) {
    if (!gateway.policy) continue;
    for (const auto& [id, request] : gateway.policy->requests()) {
      size_t num_current = 0;
      for (const SimNode& node : nodes_) {
        const bool has_pair = !request->source().id.empty();  // while it waits, the old pair has not heard yet
        const bool is_source = node.policy && has_pair && node.spec.id != request->source().id &&
                               node.policy->source_attempt(id) == request->attempt();
        if (is_source) violated("I4: two sources compute the current attempt of " + std::to_string(id.low));
      }
      for (const SimNode& node : nodes_) {
        num_current += node.policy && request->attempt() > 0 &&
                       node.policy->decoding_attempt(id) == request->attempt();
      }
      if (num_current > 1) violated("I4: two targets decode the current attempt of " + std::to_string(id.low));
    }
  }
  for (const SimNode& node : nodes_) {
    if (!node.policy) continue;
    const role::KvStore& kv = node.policy->kv();
    const uint32_t charged = kv.pool().num_charged(kv::Part::kPrivate);
    if (kv.reserved() > kv.num_private() || charged > kv.reserved()) {
      violated("I8: " + node.spec.id + " has reserved " + std::to_string(kv.reserved()) + " of " +
               std::to_string(kv.num_private()) + " private blocks, and charged " + std::to_string(charged));
    }
  }
  for (const SimGateway& gateway : gateways_) {
    if (gateway.policy) gateway.policy->check_invariants();
  }
}

void SimCluster::check_at_rest() {
  for (SimNode& node : nodes_) {
    if (!node.policy || node.is_stopped || !violation_.empty()) continue;
    const role::KvStore& kv = node.policy->kv();
    const kv::BlockPool& pool = kv.pool();
    const bool is_free = pool.num_free() + pool.num_cached() == pool.num_blocks() && kv.reserved() == 0;
    if (node.policy->num_entries() > 0 || !is_free) {
      violated(std::string(is_free ? "I9" : "I5/L2") + ": at rest something is left on " + node.policy->dump());
      continue;
    }
    node.policy->check_invariants();
  }
}

const char* name_of(const SessionMessage& message) {
  static constexpr const char* kNames[] = {"Hello", "Reserve", "ReserveOk", "ReserveNo", "Running", "Prefill",
                                           "First", "XferFailed", "Failed", "TokenBatch", "Beat", "SetMirror",
                                           "Hold", "Release", "Timings", "ForgetPrefixes"};
  return kNames[message.index()];
}

const char* name_of(const PeerMessage& message) {
  static constexpr const char* kNames[] = {"Push", "Commit", "CommitAck", "Stale", "Mirror", "MirrorAck", "MirrorStop"};
  return kNames[message.index()];
}

}  // namespace tandem::mocker
