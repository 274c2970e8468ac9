#include "cluster/node/node_process.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/node/engine_thread.h"
#include "cluster/node/part_recorder.h"
#include "cluster/node/peer_links.h"
#include "cluster/node/session_server.h"
#include "cluster/registry/registry_watch.h"
#include "cluster/wire/peer_codec.h"
#include "cluster/wire/wire_limits.h"

namespace tandem::node {

using handoff::NodeRef;

namespace {

constexpr int64_t kBusyTickNs = 5'000'000, kIdleTickNs = 50'000'000;
constexpr double kPoll_s = 0.2;  // of the registry
constexpr uint32_t kLookaheadTokens = 16;

// From the system's generator: nobody guesses it. Never 0.
uint64_t draw_number() {
  uint64_t drawn = 0;
  while (drawn == 0) TANDEM_CHECK(getrandom(&drawn, sizeof drawn, 0) == sizeof drawn);
  return drawn;
}

transport::TransportLimits transport_limits() {
  transport::TransportLimits limits;
  limits.max_header_bytes = wire::kMaxPeerBodyBytes + wire::kPeerPrefixBytes;
  limits.max_payload_bytes = wire::kMaxPayloadBytes;
  return limits;
}

class Process final : public NodeProcess, public PeerOwner, public SessionOwner, public transport::LoopClient {
 public:
  Process(NodeProcessConfig config, KvMemory& memory, registry::Registry& registry, const Clock& clock,
          MetricRegistry& metrics)
      : config_(std::move(config)), memory_(memory), registry_(registry), clock_(clock), metrics_(metrics),
        recorder_(config_.policy.self.id, config_.spans),
        stale_(metrics.gauge("tandem_handoff_stale_frames", "KV frames of attempts that are over, since the start.")),
        requests_(metrics.gauge("tandem_node_requests", "Requests that this node holds anything of.")),
        mirror_lag_(metrics.gauge("tandem_handoff_mirror_lag_tokens",
                                  "Tokens decoded here and not yet at their mirror, the largest of all requests.")),
        cached_blocks_(metrics.gauge("tandem_handoff_cached_blocks",
                                     "Prompt blocks that were here and not pushed again, since the start.")),
        pinned_(metrics.gauge("tandem_handoff_pinned_bytes", "KV kept for decodes on other nodes.")),
        most_pinned_(metrics.gauge("tandem_handoff_most_pinned_bytes", "The most of it at once, since the start.")) {}
  ~Process() override { end(); }

  Status open(sched::StepExecutor& executor, StopRuleMaker make_stop_rule);

  uint16_t control_port() const override { return sessions_->port(); }
  const NodeRef& self() const override { return config_.policy.self; }
  NodeLoad load() const override {
    Lock lock(load_mutex_);
    return load_;
  }
  bool is_idle() const override {
    Lock lock(load_mutex_);
    return is_idle_;
  }
  bool is_told_to_drain() const override { return is_told_to_drain_; }
  void drain() override {
    loop_->post([this] { node_->drain(); });
    if (!watch_->is_reached()) return log_warning("cluster/node", "the registry, which does not answer, was not told");
    const Status set = registry_.set_state(self().id, self().incarnation, registry::NodeState::kDraining);
    if (!set) log_warning("cluster/node", "the registry was not told", {{"why", set.error().message}});
  }
  void stop() override {
    end();
    if (!watch_->is_reached()) return;  // the end does not wait for it; there the record goes with its lease
    const Status left = registry_.leave(self().id, self().incarnation);
    if (!left) log_warning("cluster/node", "not taken off the registry", {{"why", left.error().message}});
  }

 private:
  void end();

  // All that follows: the loop's thread.
  void on_timer() override;
  void on_news();
  void on_view(std::optional<registry::View> view);
  void on_session_message(const std::string& gateway, uint64_t stream,
                          const handoff::SessionMessage& message) override {
    recorder_.on_message(message);
    with_node([&](role::NodeActions& out) { node_->on_session_message(gateway, stream, message, now(), out); });
  }
  void on_session_closed(const std::string& gateway, uint64_t stream) override {
    with_node([&](role::NodeActions& out) { node_->on_session_closed(gateway, stream, now(), out); });
  }
  void on_peer_frame(const NodeRef& from, const handoff::PeerMessage& message, uint64_t checksum,
                     const std::byte* payload) override;
  void on_peer_lost(const NodeRef& peer) override {
    with_node([&](role::NodeActions& out) { node_->on_peer_lost(peer, now(), out); });
  }
  std::string address_of(const NodeRef& peer) override;
  bool is_let_in(const KvPass& pass) override { return node_->is_let_in(pass.request, pass.token); }
  template <class Message>
  KvPass pass_for(const Message& message) const {
    return {message.request, node_->token_to_show(message)};
  }
  template <class Event>
  void with_node(const Event& event, const std::byte* payload = nullptr);
  void act(role::NodeAction& action, const std::byte* payload);
  void send_block(role::SendBlock& action);
  void send_slots(role::SendKv& action);
  void publish_load();
  bool has_payload_size(const handoff::PeerMessage& message) const;
  handoff::Nanos now() const { return clock_.now_ns(); }

  NodeProcessConfig config_;
  KvMemory& memory_;
  registry::Registry& registry_;
  const Clock& clock_;
  MetricRegistry& metrics_;
  PartRecorder recorder_;
  Gauge &stale_, &requests_, &mirror_lag_, &cached_blocks_, &pinned_, &most_pinned_;
  double most_pinned_bytes_ = 0;

  std::unique_ptr<transport::EventLoop> loop_;
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<role::Node> node_;
  std::unique_ptr<EngineThread> engine_;
  std::unique_ptr<SessionServer> sessions_;
  registry::View view_;
  std::atomic<bool> is_told_to_drain_ = false;
  std::unique_ptr<registry::RegistryWatch> watch_;
  std::thread thread_;

  mutable Mutex load_mutex_;
  NodeLoad load_ GUARDED_BY(load_mutex_);
  bool is_idle_ GUARDED_BY(load_mutex_) = true;
};

Status Process::open(sched::StepExecutor& executor, StopRuleMaker make_stop_rule) {
  role::NodeConfig& policy = config_.policy;
  if (policy.self.incarnation == 0) policy.self.incarnation = draw_number();
  policy.has_engine_beside = true;
  policy.draw_token = draw_number;
  policy.lookahead_tokens = kLookaheadTokens;
  TRY_ASSIGN(loop_, transport::EventLoop::create(clock_));
  network_ = std::make_unique<transport::Network>(*loop_, transport_limits(), config_.hub);
  links_ = std::make_unique<PeerLinks>(*loop_, *network_, policy.self, *this, metrics_);
  links_->hold_to_rate(config_.kv_bytes_per_s);
  if (!config_.has_spare_core) links_->pace_intake({[this] { return node_ && node_->is_decoding(); }, thread_cpu_ns});
  TRY(links_->listen(config_.data_address));
  engine_ = std::make_unique<EngineThread>(config_.engine, executor, clock_, std::move(make_stop_rule),
                                           [this] { loop_->post([this] { on_news(); }); });
  TRY_ASSIGN(sessions_, SessionServer::start(*loop_, config_.control_host, config_.control_port, config_.rpc, *this));
  registry::NodeRecord record{policy.self.id, policy.self.incarnation, policy.role, 0, registry::NodeState::kReady,
                              config_.control_host + ":" + std::to_string(sessions_->port()), links_->address(),
                              static_cast<uint64_t>(getpid()), config_.metrics_url};
  TRY_ASSIGN(record, registry_.join(record));
  policy.role = record.role;
  policy.role_epoch = record.role_epoch;
  node_ = std::make_unique<role::Node>(policy);
  publish_load();
  loop_->post([this] { on_timer(); });
  watch_ = std::make_unique<registry::RegistryWatch>(registry_, kPoll_s,
                                                     [this] { loop_->post([this] { on_view(watch_->take()); }); });
  thread_ = std::thread([this] { loop_->run(); });
  log_info("cluster/node", "serving", {{"node", policy.self.id}, {"role", registry::role_name(policy.role)},
                                       {"control", record.control}, {"data", record.data}});
  return Done{};
}

void Process::end() {
  if (!thread_.joinable()) return;
  watch_->stop();
  loop_->stop();
  thread_.join();
  sessions_.reset();
  engine_.reset();
  loop_->forget(*this);
  links_.reset();
}

template <class Event>
void Process::with_node(const Event& event, const std::byte* payload) {
  role::NodeActions actions;
  event(actions);
  for (role::NodeAction& action : actions) act(action, payload);
  node_->on_carried_out(engine_->newest_step(), engine_->num_ended());
}

void Process::act(role::NodeAction& action, const std::byte* payload) {
  if (auto* session = std::get_if<role::SendSession>(&action)) {
    recorder_.on_sent(session->message);
    sessions_->send(session->stream, session->message);
  } else if (const auto* close = std::get_if<role::CloseSession>(&action)) {
    sessions_->close(close->stream);
  } else if (auto* peer = std::get_if<role::SendPeer>(&action)) {
    const KvPass pass = std::visit([this](const auto& message) { return pass_for(message); }, peer->message);
    links_->send(peer->peer, pass, [this, told_at = now(), message = std::move(peer->message)](
                                       handoff::PeerMessage& to, std::vector<std::byte>&) {
      to = message;
      if (auto* commit = std::get_if<handoff::Commit>(&to)) {  // it comes behind all pushes
        commit->sampled_ago_ns += static_cast<uint64_t>(now() - told_at);
      }
      return true;
    });
  } else if (auto* block = std::get_if<role::SendBlock>(&action)) {
    send_block(*block);
  } else if (auto* mirror = std::get_if<role::SendKv>(&action)) {
    send_slots(*mirror);
  } else if (const auto* copy = std::get_if<role::CopyBlock>(&action)) {
    TANDEM_CHECK(memory_.write_part(copy->block, copy->layer_group, payload));
  } else if (const auto* kv = std::get_if<role::CopyKv>(&action)) {
    for (const role::Slots& slots : kv->slots) {
      TANDEM_CHECK(memory_.write_slots(slots.block, slots.begin, slots.count, payload));
      payload += size_t{slots.count} * memory_.slot_bytes();
    }
  } else if (auto* prefill = std::get_if<role::StartPrefill>(&action)) {
    engine_->post(std::move(*prefill));
  } else if (auto* stop = std::get_if<role::StopPrefill>(&action)) {
    engine_->post(std::move(*stop));
  } else if (auto* decode = std::get_if<role::StartDecode>(&action)) {
    engine_->post(std::move(*decode));
  } else if (auto* extension = std::get_if<role::ExtendTable>(&action)) {
    engine_->post(std::move(*extension));
  } else if (auto* ended = std::get_if<role::StopDecoding>(&action)) {
    engine_->post(std::move(*ended));
  }
}

// Read when its turn comes: until then the attempt may be over, and its blocks another's.
void Process::send_block(role::SendBlock& action) {
  links_->send(action.peer, pass_for(action.push), [this, push = action.push, block = action.block](
                                                       handoff::PeerMessage& message, std::vector<std::byte>& payload) {
    if (node_->source_attempt(push.request) != push.attempt) return false;
    payload.resize(memory_.part_bytes());
    engine_->with_parts([&] { TANDEM_CHECK(memory_.read_part(block, push.layer_group, payload.data())); });
    handoff::Push filled = push;
    filled.payload = {0, memory_.part_bytes()};
    message = filled;
    return true;
  });
}

void Process::send_slots(role::SendKv& action) {
  const KvPass pass = pass_for(action.frame);
  links_->send(action.peer, pass, [this, frame = std::move(action.frame), slots = std::move(action.slots)](
                                      handoff::PeerMessage& message, std::vector<std::byte>& payload) {
    if (node_->decoding_attempt(frame.request) != frame.attempt) return false;
    payload.resize(frame.tokens.size() * memory_.slot_bytes());
    std::byte* to = payload.data();
    for (const role::Slots& part : slots) {
      TANDEM_CHECK(memory_.read_slots(part.block, part.begin, part.count, to));
      to += size_t{part.count} * memory_.slot_bytes();
    }
    handoff::Mirror filled = frame;
    filled.payload = {0, static_cast<uint32_t>(payload.size())};
    message = std::move(filled);
    return true;
  }, action.is_catch_up ? FrameClass::kCatchUp : FrameClass::kUsual);
}

bool Process::has_payload_size(const handoff::PeerMessage& message) const {
  if (const auto* push = std::get_if<handoff::Push>(&message)) return push->payload.size_bytes == memory_.part_bytes();
  if (const auto* mirror = std::get_if<handoff::Mirror>(&message)) {
    return mirror->payload.size_bytes == mirror->tokens.size() * memory_.slot_bytes();
  }
  return true;
}

void Process::on_peer_frame(const NodeRef& from, const handoff::PeerMessage& message, uint64_t checksum,
                            const std::byte* payload) {
  if (!has_payload_size(message)) {
    log_warning("cluster/node", "a KV frame of the wrong size is left out", {{"peer", from.id}});
    return;
  }
  with_node([&](role::NodeActions& out) { node_->on_peer_message(from, message, checksum, now(), out); }, payload);
}

void Process::on_news() {
  for (const role::EngineNews& news : engine_->take_news()) {
    with_node([&](role::NodeActions& out) { node_->on_engine(news, now(), out); });
  }
  node_->on_carried_out(engine_->newest_step(), engine_->num_ended());
  publish_load();
}

void Process::on_timer() {
  with_node([&](role::NodeActions& out) { node_->on_tick(engine_->progress(), now(), out); });
  sessions_->on_tick(now());
  publish_load();
  loop_->set_timer(*this, now() + (node_->num_entries() > 0 ? kBusyTickNs : kIdleTickNs));
}

void Process::on_view(std::optional<registry::View> view) {
  if (!view || view->revision <= view_.revision) return;
  view_ = std::move(*view);
  node_->set_config_revision(view_.config_revision);
  const auto it = view_.nodes.find(self().id);
  if (it == view_.nodes.end() || it->second.incarnation != self().incarnation) return;
  if (it->second.state == registry::NodeState::kDraining) is_told_to_drain_ = true;
  if (it->second.role_epoch <= node_->config().role_epoch) return;
  log_info("cluster/node", "another role", {{"node", self().id}, {"role", registry::role_name(it->second.role)}});
  node_->set_role(it->second.role, it->second.role_epoch);
}

// A peer may have come a moment ago: then the registry is asked from here, if it is one that cannot hold the beats up;
// another is asked by the thread that polls it, and this attempt fails.
std::string Process::address_of(const NodeRef& peer) {
  for (int trial = 0; trial < 2; ++trial) {
    const auto it = view_.nodes.find(peer.id);
    if (it != view_.nodes.end() && it->second.incarnation == peer.incarnation) return it->second.data;
    if (trial > 0) return {};
    if (!registry_.is_local()) {
      watch_->poll_now();
      return {};
    }
    auto polled = registry_.poll(view_.revision);
    if (polled) on_view(std::move(*polled));
  }
  return {};
}

void Process::publish_load() {
  const role::KvStore& kv = node_->kv();
  NodeLoad load;
  load.num_requests = static_cast<uint32_t>(node_->num_entries());
  load.num_private = kv.num_private();
  load.num_free_private = kv.num_private() - std::min(kv.num_private(), kv.reserved());
  load.num_shared = kv.num_shared();
  load.num_free_shared = kv.pool().num_available(kv::Part::kShared);
  stale_.set(static_cast<double>(node_->num_stale()));
  requests_.set(load.num_requests);
  mirror_lag_.set(node_->mirror_lag());
  cached_blocks_.set(static_cast<double>(node_->num_cached_blocks()));
  const double pinned_bytes = node_->num_pinned_blocks() * config_.policy.bytes_per_block;
  most_pinned_bytes_ = std::max(most_pinned_bytes_, pinned_bytes);
  pinned_.set(pinned_bytes);
  most_pinned_.set(most_pinned_bytes_);
  Lock lock(load_mutex_);
  load_ = load;
  is_idle_ = node_->is_idle();
}

}  // namespace

Result<std::unique_ptr<NodeProcess>> NodeProcess::start(NodeProcessConfig config, sched::StepExecutor& executor,
                                                        KvMemory& memory, registry::Registry& registry,
                                                        StopRuleMaker make_stop_rule, const Clock& clock,
                                                        MetricRegistry& metrics) {
  auto process = std::make_unique<Process>(std::move(config), memory, registry, clock, metrics);
  TRY(process->open(executor, std::move(make_stop_rule)));
  return std::unique_ptr<NodeProcess>(std::move(process));
}

}  // namespace tandem::node
