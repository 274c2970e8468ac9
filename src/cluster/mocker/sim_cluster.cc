// Processes, their loops, and what their actions do.
#include "cluster/mocker/sim_cluster.h"

#include <algorithm>

#include "cluster/wire/peer_codec.h"
#include "cluster/wire/session_codec.h"

namespace tandem::mocker {

using namespace handoff;

namespace {

uint64_t checksum_of(const std::vector<uint64_t>& words) {
  uint64_t sum = words.size();
  for (const uint64_t word : words) sum = mix(sum, word);
  return sum;
}

// A small machine: 1.5 ms a step, 20 us a prompt token, 0.1 ms a row, and a little per position attended.
const cost::StepCost& step_cost() {
  static const cost::StepCost fitted = cost_of({1.5e-3, 20e-6, 1e-4, 2e-9, 5e-8});
  return fitted;
}

}  // namespace

cost::StepCost cost_of(const cost::StepCost::Terms& terms) {
  cost::StepCost cost;
  for (uint64_t i = 0; i < 400; ++i) {
    cost::StepShape shape;
    if (i % 3 != 0) shape.add_prefill(i * 7 % 500, 1 + i * 13 % 200);
    for (uint64_t r = 0; r < i % 9; ++r) shape.add_decode(10 + i * 11 % 700);
    cost.observe(shape, terms[0] + terms[1] * static_cast<double>(shape.num_prefill_tokens) +
                            terms[2] * static_cast<double>(shape.num_decode_rows) +
                            terms[3] * static_cast<double>(shape.prefill_attended) +
                            terms[4] * static_cast<double>(shape.decode_attended));
  }
  return cost;
}

SimCluster::SimCluster(const SimConfig& config)
    : config_(config), random_(config.seed), net_(events_, random_, config_.net), nodes_(config.nodes.size()) {
  net_.may_deliver = [this](const ChannelKey& channel) { return may_deliver(channel); };
  for (size_t n = 0; n < nodes_.size(); ++n) {
    nodes_[n].spec = config_.nodes[n];
    node_index_[nodes_[n].spec.id] = n;
    start_node(n);
  }
  for (size_t g = 0; g < config_.num_gateways; ++g) {
    SimGateway& gateway = gateways_.emplace_back();
    gateway.id = "g" + std::to_string(g);
    gateway.clock_offset = config_.are_timers_scaled ? random_.between(kMs, 1'000'000'000 * kMs) : kMs;
    role::GatewayConfig made{{gateway.id, random_.next()}, scaled_timing(), 4096, config_.prefill_tokens_per_s,
                             config_.ramp, true, config_.does_holder_adopt};
    made.router = config_.router;
    if (made.router) made.router->seed = config_.seed;
    gateway.policy = std::make_unique<role::Gateway>(std::move(made));
    gateway.policy->test_only = config_.gateway_rules;
    for (const SimNode& node : nodes_) gateway.policy->add_node(node.spec.id);
    events_.after(random_.between(0, config_.tick), [this, g] { tick_gateway(g); });
  }
}

SimCluster::~SimCluster() = default;

Timing SimCluster::scaled_timing() {
  Timing timing = config_.timing;
  if (!config_.are_timers_scaled) return timing;
  for (Nanos* timer : {&timing.reserve, &timing.prefill_slack, &timing.transfer_slack, &timing.lease,
                       &timing.gateway_beat, &timing.node_beat_busy, &timing.node_beat_idle, &timing.suspect_min,
                       &timing.suspect_max, &timing.suspect_idle, &timing.self_blame, &timing.stuck_min,
                       &timing.bad_pair_min, &timing.reopen, &timing.reopen_max, &timing.open_timeout,
                       &timing.mirror_retry, &timing.death_known}) {
    const uint64_t choice = random_.below(3);
    *timer = choice == 0 ? *timer / 2 : choice == 1 ? *timer * 2 : *timer;
  }
  timing.suspect_max = std::max(timing.suspect_max, timing.suspect_min);
  return timing;
}

void SimCluster::start_node(size_t n) {
  SimNode& node = nodes_[n];
  node.incarnation = random_.next();
  node.clock_offset = config_.are_timers_scaled ? random_.between(kMs, 1'000'000'000 * kMs) : kMs;
  role::NodeConfig made;
  made.self = {node.spec.id, node.incarnation};
  made.role = node.spec.role;
  made.pool = config_.pool;
  made.max_pinned_blocks = config_.max_pinned_blocks;
  made.num_layer_groups = config_.num_layer_groups;
  made.timing = scaled_timing();
  node.policy = std::make_unique<role::Node>(std::move(made));
  node.policy->test_only = config_.node_rules;
  node.policy->test_only_change_kv(config_.kv_rules);
  node.kv = std::make_unique<MockKv>(config_.pool.num_blocks, config_.pool.block_size, config_.num_layer_groups);
  MockEngineConfig engine = config_.engine;
  if (config_.has_random_sampling) engine.salt = static_cast<uint32_t>(random_.below(1u << 30) + 1);
  const cost::StepCost& cost = config_.step_cost != nullptr ? *config_.step_cost : step_cost();
  node.engine = std::make_unique<MockEngine>(engine, *node.kv, cost,
                                             [this](const std::string& what) { violated(what); });
  node.is_stopped = false;
  node.stops_after = node.dies_after = 0;
  const uint64_t incarnation = node.incarnation;
  events_.after(random_.between(0, config_.tick), [this, n, incarnation] { tick_node(n, incarnation); });
}

void SimCluster::tick_node(size_t n, uint64_t incarnation) {
  SimNode& node = nodes_[n];
  if (!node.policy || node.incarnation != incarnation) return;
  if (!node.is_stopped) {
    role::NodeActions actions;
    node.policy->on_tick(node.engine->progress(node_time(n)), node_time(n), actions);
    after_node_event(n, actions, {});
  }
  events_.after(config_.tick, [this, n, incarnation] { tick_node(n, incarnation); });
}

void SimCluster::tick_gateway(size_t g) {
  if (!gateways_[g].policy) return;
  if (events_.now() >= gateways_[g].stalled_until) {
    role::GatewayOuts outs;
    gateways_[g].policy->on_tick(gateway_time(g), outs);
    after_gateway_event(g, outs);
  }
  check_running();
  events_.after(config_.tick, [this, g] { tick_gateway(g); });
}

bool SimCluster::may_deliver(const ChannelKey& key) const {
  switch (key.kind) {
    case ChannelKey::kToNode: return !cut_gateway_.contains({key.from, key.to}) && !nodes_[key.to].is_stopped;
    case ChannelKey::kToGateway:
      return !cut_gateway_.contains({key.to, key.from}) && events_.now() >= gateways_[key.to].stalled_until;
    case ChannelKey::kData: return !nodes_[key.to].is_stopped;
    case ChannelKey::kLocal: return !nodes_[key.to].is_stopped;
  }
  return false;
}

void SimCluster::count_message(size_t n) {
  SimNode& node = nodes_[n];
  if (node.stops_after > 0 && --node.stops_after == 0) stop_node(n);
  if (node.dies_after > 0 && --node.dies_after == 0) kill_node(n);
}

// ---- session streams

void SimCluster::open_stream(size_t g, const role::OpenStream& open) {
  const size_t n = index_of(open.node);
  const ChannelKey key{ChannelKey::kToNode, g, n, open.stream};
  streams_[key] = nodes_[n].policy ? nodes_[n].incarnation : 0;
  if (!nodes_[n].policy) send_eof_to_gateway(key, true);
}

void SimCluster::send_to_node(size_t g, const role::SendNode& send) {
  const size_t n = index_of(send.node);
  const ChannelKey key{ChannelKey::kToNode, g, n, send.stream};
  const auto stream = streams_.find(key);
  if (stream == streams_.end()) return;
  note(gateways_[g].id + ">" + send.node + " " + name_of(send.message));
  net_.send(key, [this, key, incarnation = stream->second, message = as_read(send.message)] {
    SimNode& node = nodes_[key.to];
    if (!node.policy || node.incarnation != incarnation) return send_eof_to_gateway(key);
    role::NodeActions actions;
    const std::string& gateway = gateways_[key.from].id;
    node.policy->on_session_message(gateway, key.connection, message, node_time(key.to), actions);
    const bool is_accepted_hello = std::any_of(actions.begin(), actions.end(), [](const role::NodeAction& action) {
      const auto* reply = std::get_if<role::SendSession>(&action);
      return reply && std::holds_alternative<Hello>(reply->message);
    });
    if (is_accepted_hello && node.policy->num_entries_of(gateway) > 0) {
      violated("I7: " + node.spec.id + " holds something for a session older than the newest Hello");
    }
    after_node_event(key.to, actions, {});
    count_message(key.to);
  });
}

void SimCluster::send_to_gateway(size_t n, const role::SendSession& send) {
  const size_t g = send.gateway == gateways_[0].id ? 0 : static_cast<size_t>(std::stoul(send.gateway.substr(1)));
  note(nodes_[n].spec.id + ">" + send.gateway + " " + name_of(send.message));
  const SessionMessage read = as_read(send.message);
  net_.send({ChannelKey::kToGateway, n, g, send.stream}, [this, n, g, stream = send.stream, message = read] {
    if (!gateways_[g].policy) return;
    role::GatewayOuts outs;
    gateways_[g].policy->on_stream_message(nodes_[n].spec.id, stream, message, gateway_time(g), outs);
    after_gateway_event(g, outs);
  });
}

void SimCluster::send_eof_to_gateway(const ChannelKey& stream, bool is_refused) {
  const size_t g = stream.from;
  const size_t n = stream.to;
  const uint64_t connection = stream.connection;
  net_.send({ChannelKey::kToGateway, n, g, connection}, [this, g, n, is_refused, connection] {
    if (!gateways_[g].policy) return;
    role::GatewayOuts outs;
    gateways_[g].policy->on_stream_closed(nodes_[n].spec.id, connection, gateway_time(g), outs, is_refused);
    after_gateway_event(g, outs);
  });
}

void SimCluster::after_gateway_event(size_t g, role::GatewayOuts& outs) {
  for (role::GatewayOut& out : outs) {
    if (const auto* open = std::get_if<role::OpenStream>(&out)) open_stream(g, *open);
    else if (const auto* send = std::get_if<role::SendNode>(&out)) send_to_node(g, *send);
    else if (const auto* token = std::get_if<role::DeliverToken>(&out)) deliver_token(token->entry);
    else if (const auto* ended = std::get_if<role::RequestEnded>(&out)) end_request(*ended);
    else if (const auto* told = std::get_if<role::NodeTimings>(&out)) {
      for (const PartTime& part : told->timings.parts) {
        part_times_[part.part].push_back(static_cast<Nanos>(part.duration_ns));
      }
    } else if (const auto* close = std::get_if<role::CloseStream>(&out)) {
      // What is under way to the node still comes; what comes back finds the session gone.
      note(gateways_[g].id + " closes its session to " + close->node);
      streams_.erase({ChannelKey::kToNode, g, index_of(close->node), close->stream});
    }
  }
  outs.clear();
}

// ---- nodes

void SimCluster::after_node_event(size_t n, role::NodeActions& actions, const std::vector<uint64_t>& payload) {
  for (role::NodeAction& action : actions) act(n, action, payload);
  actions.clear();
  if (nodes_[n].policy) schedule_step(n);
}

void SimCluster::act(size_t n, role::NodeAction& action, const std::vector<uint64_t>& payload) {
  SimNode& node = nodes_[n];
  if (const auto* session = std::get_if<role::SendSession>(&action)) send_to_gateway(n, *session);
  else if (auto* peer = std::get_if<role::SendPeer>(&action)) send_frame(n, peer->peer, std::move(peer->message), {});
  else if (auto* block = std::get_if<role::SendBlock>(&action)) {
    ++num_pushed_parts_;
    send_frame(n, block->peer, block->push, node.kv->read_block(block->block, block->push.layer_group));
  } else if (auto* mirror = std::get_if<role::SendKv>(&action)) {
    send_frame(n, mirror->peer, std::move(mirror->frame), node.kv->read(mirror->slots));
  } else if (const auto* copy = std::get_if<role::CopyBlock>(&action)) {
    node.kv->write_block(copy->block, copy->layer_group, payload);
  } else if (const auto* kv = std::get_if<role::CopyKv>(&action)) {
    node.kv->write(kv->slots, payload);
  } else if (auto* prefill = std::get_if<role::StartPrefill>(&action)) {
    node.engine->start_prefill(std::move(*prefill));
  } else if (const auto* stop = std::get_if<role::StopPrefill>(&action)) {
    node.engine->stop_prefill(stop->request);
  } else if (auto* decode = std::get_if<role::StartDecode>(&action)) {
    note(node.spec.id + " decodes " + std::to_string(decode->request.low));
    node.engine->start_decode(std::move(*decode));
  } else if (const auto* extension = std::get_if<role::ExtendTable>(&action)) {
    node.engine->extend(*extension);
  } else if (const auto* end = std::get_if<role::StopDecoding>(&action)) {
    node.engine->stop_decode(end->request);
  } else if (const auto* close = std::get_if<role::CloseSession>(&action)) {
    const auto g = static_cast<size_t>(std::stoul(close->gateway.substr(1)));
    send_eof_to_gateway({ChannelKey::kToNode, g, n, close->stream});
  }
}

void SimCluster::schedule_step(size_t n) {
  Nanos end = nodes_[n].engine->begin_step(node_time(n));
  if (end == INT64_MAX) return;
  end -= nodes_[n].clock_offset;
  const uint64_t incarnation = nodes_[n].incarnation;
  events_.at(end, [this, n, incarnation] { end_step(n, incarnation); });
}

void SimCluster::end_step(size_t n, uint64_t incarnation) {
  SimNode& node = nodes_[n];
  if (!node.policy || node.incarnation != incarnation) return;
  if (node.is_stopped) {
    events_.after(config_.tick, [this, n, incarnation] { end_step(n, incarnation); });
    return;
  }
  role::NodeActions actions;
  for (const role::EngineNews& news : node.engine->end_step()) {
    node.policy->on_engine(news, node_time(n), actions);
    for (role::NodeAction& action : actions) act(n, action, {});
    actions.clear();
  }
  schedule_step(n);
}

// ---- data plane

void SimCluster::send_frame(size_t n, const NodeRef& to, PeerMessage message, std::vector<uint64_t> words) {
  const size_t m = index_of(to.id);
  const std::pair<size_t, size_t> link{std::min(n, m), std::max(n, m)};
  note(nodes_[n].spec.id + ">" + to.id + " " + name_of(message));
  if (cut_nodes_.contains(link) || n == m) return tell_peer_lost(n, to);
  uint64_t& connection = connections_[link];
  if (connection == 0) connection = next_connection_++;
  Frame frame{{nodes_[n].spec.id, nodes_[n].incarnation}, to, std::move(message), std::move(words), 0};
  frame.checksum = checksum_of(frame.words);
  if (auto* push = std::get_if<Push>(&frame.message)) {
    push->checksum = frame.checksum;
    push->payload = {0, static_cast<uint32_t>(8 * frame.words.size())};
    if (random_.chance(net_.config().p_corrupt)) frame.words[random_.below(frame.words.size())] ^= 1;
  }
  frame.message = as_read(frame.message);
  if (random_.chance(net_.config().p_drop)) return break_connection(n, m);
  const ChannelKey key{ChannelKey::kData, n, m, connection};
  const int copies = random_.chance(net_.config().p_duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) net_.send(key, [this, frame] { deliver_frame(frame); });
}

void SimCluster::deliver_frame(const Frame& frame) {
  const size_t n = index_of(frame.to.id);
  SimNode& node = nodes_[n];
  if (!node.policy || node.incarnation != frame.to.incarnation) {  // refused by whoever is there now
    return tell_peer_lost(index_of(frame.from.id), frame.to);
  }
  role::NodeActions actions;
  node.policy->on_peer_message(frame.from, frame.message, checksum_of(frame.words), node_time(n), actions);
  after_node_event(n, actions, frame.words);
  count_message(n);
}

void SimCluster::tell_peer_lost(size_t n, const NodeRef& peer) {
  const uint64_t incarnation = nodes_[n].incarnation;
  net_.send({ChannelKey::kLocal, n, n, 0}, [this, n, incarnation, peer] {
    SimNode& node = nodes_[n];
    if (!node.policy || node.incarnation != incarnation) return;
    role::NodeActions actions;
    node.policy->on_peer_lost(peer, node_time(n), actions);
    after_node_event(n, actions, {});
  });
}

// Both ends learn of it, what was under way is lost, and the next frame makes a connection of its own.
void SimCluster::break_connection(size_t a, size_t b) {
  const auto it = connections_.find({std::min(a, b), std::max(a, b)});
  if (it != connections_.end()) {
    net_.erase({ChannelKey::kData, a, b, it->second});
    net_.erase({ChannelKey::kData, b, a, it->second});
    connections_.erase(it);
  }
  tell_peer_lost(a, {nodes_[b].spec.id, nodes_[b].incarnation});
  tell_peer_lost(b, {nodes_[a].spec.id, nodes_[a].incarnation});
}

size_t SimCluster::index_of(const std::string& node) const { return node_index_.at(node); }

SessionMessage SimCluster::as_read(const SessionMessage& message) {
  if (!config_.uses_wire_format) return message;
  const auto bytes = wire::encode_session(message);
  const auto read = bytes ? wire::decode_session(bytes.value()) : Error(bytes.error());
  if (read && read.value()) return *read.value();
  violated(std::string("a message that cannot be read: ") + (read ? "of no known kind" : read.error().message));
  return message;
}

PeerMessage SimCluster::as_read(const PeerMessage& message) {
  if (!config_.uses_wire_format) return message;
  const auto frame = wire::encode_peer(message);
  const auto read = frame ? wire::decode_peer(frame.value().header) : Error(frame.error());
  if (read && read.value()) return *read.value();
  violated(std::string("a frame that cannot be read: ") + (read ? "of no known kind" : read.error().message));
  return message;
}

void SimCluster::note(const std::string& line) {
  if (!config_.traces) return;
  trace_.push_back(std::to_string(static_cast<double>(events_.now()) / 1e6) + " ms  " + line);
  if (trace_.size() > 4000) trace_.pop_front();
}

void SimCluster::run_for(Nanos duration, bool stops_when_idle) {
  events_.run_until(events_.now() + duration, [&] {
    return !violation_.empty() || (stops_when_idle && num_open() == 0);
  });
}

}  // namespace tandem::mocker
