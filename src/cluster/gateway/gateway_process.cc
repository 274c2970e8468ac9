#include "cluster/gateway/gateway_process.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>

#include "base/bounded_queue.h"
#include "base/log.h"
#include "cluster/gateway/gateway_loop.h"
#include "cluster/gateway/request_state.h"
#include "cluster/registry/registry_watch.h"

namespace tandem::gateway {
namespace {

constexpr size_t kMailboxLimit = 65536;  // beyond the queue's own limit only what arrives within a round

// Room is the nodes' to judge, so only lengths, queue and deadlines are left.
sched::SchedulerConfig admission_config(const GatewayProcessConfig& config) {
  sched::SchedulerConfig admission;
  admission.max_model_len = config.limits.max_model_len;
  admission.num_blocks = config.limits.max_model_len / admission.block_size + 1;
  admission.max_queue_length = config.max_queue_length;
  admission.max_queued_tokens = config.max_queued_tokens;
  admission.max_queued_per_tenant = config.max_queued_per_tenant;
  admission.max_queue_s = config.max_queue_s;
  admission.tenant_weights = config.policy.tenant_weights;
  return admission;
}

class Process final : public GatewayProcess {
 public:
  Process(GatewayProcessConfig config, registry::Registry& registry, const Clock& clock, MetricRegistry& metrics)
      : config_(std::move(config)),
        registry_(registry),
        clock_(clock),
        gate_(admission_config(config_)),
        metrics_(metrics, config_.model_name, config_.policy.prefill_tokens_per_s),
        mailbox_(kMailboxLimit) {}
  ~Process() override { stop(); }

  Status start() {
    TRY_ASSIGN(NodeStreams streams, NodeStreams::open(config_.rpc, inbox_));
    loop_ = std::make_unique<GatewayLoop>(config_.policy, std::move(streams), gate_, metrics_, config_.spans);
    look_back();
    watch_ = std::make_unique<registry::RegistryWatch>(registry_, config_.registry_poll_s, [this] { inbox_.wake(); });
    thread_ = std::thread([this] { run(); });
    return Done{};
  }

  Result<sched::RequestId> submit(sched::Request request, std::shared_ptr<sched::TokenSink> sink) override {
    auto id = admit(std::move(request), std::move(sink));
    if (!id) metrics_.reject();
    return id;
  }

  Status check_room(const std::string& tenant) override {
    Status room = gate_.check_room(tenant);
    if (!room) metrics_.reject();
    return room;
  }

  void cancel(sched::RequestId request) override {
    if (gate_.cancel(request)) inbox_.wake();
  }

  // Of the nodes that have a session now. Each gets it before what is submitted later.
  bool reset_prefix_cache() override {
    forgets_prefixes_.store(true);
    inbox_.wake();
    return true;
  }

  engine::GeneratorLimits limits() const override {
    engine::GeneratorLimits limits = config_.limits;
    limits.max_waiting = gate_.max_waiting();
    limits.max_waiting_tokens = gate_.max_waiting_tokens();
    return limits;
  }

  engine::GeneratorLoad load() const override {
    const uint32_t num_queued = gate_.num_queued(), num_alive = gate_.num_alive();
    return {num_alive - std::min(num_alive, num_queued), num_queued, kv_usage_.load(std::memory_order_relaxed),
            gate_.retry_after_s()};
  }

  bool can_serve() const override { return can_serve_.load(std::memory_order_relaxed); }

  std::string status_json() override {
    Lock lock(status_mutex_);
    return to_json(status_);
  }

  Status drain(const std::string& node) override {
    if (!knows(node)) return Error{ErrorCode::kNotFound, "no node is called " + node};
    // The caller may be the thread that serves all clients: a registry that is silent is not waited for.
    if (!watch_->is_reached()) return tell_to_drain(node);
    if (auto record = record_of(node)) {
      // Its failing only means that other gateways do not know.
      const Status told = registry_.set_state(node, record->incarnation, registry::NodeState::kDraining);
      if (!told && told.error().code == ErrorCode::kNotFound) return told.error();
    }
    return tell_to_drain(node);
  }

  Result<uint64_t> set_role(const std::string& node, handoff::Role role) override {
    if (!watch_->is_reached()) return Error{ErrorCode::kUnavailable, "the registry does not answer; ask again later"};
    TRY_ASSIGN(const auto record, record_of(node));
    TRY_ASSIGN(const uint64_t epoch, registry_.flip_role(node, record.role_epoch, role));
    watch_->poll_now();
    return epoch;
  }

  void begin_drain() override { gate_.close(); }
  bool wait_idle(double timeout_s) const override { return gate_.wait_empty(timeout_s); }

  void stop() override {
    gate_.close();
    mailbox_.close();
    is_stopping_.store(true);
    inbox_.wake();
    if (thread_.joinable()) thread_.join();
    if (watch_) watch_->stop();
  }

 private:
  Result<sched::RequestId> admit(sched::Request request, std::shared_ptr<sched::TokenSink> sink) {
    TRY(check_request(request, config_.limits));
    if (!can_serve()) {
      return Error{ErrorCode::kUnavailable, "no node that prefills, or none that decodes, is ready"};
    }
    if (gate_.num_alive() >= config_.policy.max_requests) {
      return Error{ErrorCode::kUnavailable,
                   "the gateway holds " + std::to_string(config_.policy.max_requests) + " requests, and no more"};
    }
    TRY_ASSIGN(const sched::RequestId id, gate_.enter(request, clock_.now_ns()));
    Arrival arrival;
    arrival.id = id;
    arrival.sink = std::move(sink);
    arrival.deadline = request.deadline_ns == 0 ? INT64_MAX : request.deadline_ns;
    arrival.priority = request.priority;
    arrival.tenant = request.tenant;
    arrival.trace = request.trace.is_set() ? request.trace : new_trace();
    log_info("cluster/gateway", "a request",
             {{"request", std::to_string(static_cast<uint64_t>(id))},
              {"id", request.client_id},
              {"trace", trace_id_hex(arrival.trace)}});
    arrival.hides_tokens = request.max_tokens == 0;
    arrival.state = state_of(std::move(request), config_.model_name, config_.limits.max_model_len);
    if (handoff::is_extended(arrival.state) && !can_serve_extended_.load(std::memory_order_relaxed)) {
      gate_.end(id);
      return Error{ErrorCode::kUnavailable, "no node that is ready knows this kind of request yet"};
    }
    if (!mailbox_.try_push(std::move(arrival))) {
      gate_.end(id);
      return Error{ErrorCode::kUnavailable, "the gateway takes no requests"};
    }
    inbox_.wake();
    return id;
  }

  bool knows(const std::string& node) {
    Lock lock(status_mutex_);
    return std::ranges::any_of(status_.nodes,
                               [&](const NodeStatus& known) { return known.id == node && known.role != "gateway"; });
  }

  Status tell_to_drain(const std::string& node) {
    {
      Lock lock(drains_mutex_);
      drains_.push_back(node);
    }
    inbox_.wake();
    watch_->poll_now();
    return Done{};
  }

  Result<registry::NodeRecord> record_of(const std::string& node) {
    TRY_ASSIGN(const auto view, registry_.poll(0));
    if (view) {
      const auto it = view->nodes.find(node);
      if (it != view->nodes.end()) return it->second;
    }
    return Error{ErrorCode::kNotFound, "no node is called " + node};
  }

  void run() {
    int64_t next_tick_ns = 0;
    while (!is_stopping_.load()) {
      const double wait_s = static_cast<double>(next_tick_ns - clock_.now_ns()) * 1e-9;
      const auto events = wait_s > 0 ? inbox_.wait_drain(wait_s) : inbox_.drain();
      const int64_t now_ns = clock_.now_ns();
      for (const rpc::RpcEvent& event : events) loop_->on_event(event, now_ns);
      if (auto view = watch_->take()) loop_->on_view(*view, now_ns);
      const bool has_arrivals = take_clients(now_ns);
      // What arrives finds its nodes at once.
      if (has_arrivals || now_ns >= next_tick_ns) {
        loop_->tick(now_ns);
        next_tick_ns = now_ns + static_cast<int64_t>(config_.tick_s * 1e9);
        look_back();
      }
      loop_->publish();
    }
    take_clients(clock_.now_ns());
    loop_->end_all({ErrorCode::kUnavailable, "the server is shutting down"}, clock_.now_ns());
  }

  // The cancellations are taken before the mailbox is drained: a request is in the mailbox before anyone can cancel it.
  bool take_clients(int64_t now_ns) {
    const std::vector<sched::RequestId> cancelled = gate_.take_cancelled();
    std::vector<Arrival> arrivals = mailbox_.drain();
    // After the mailbox is drained: who was submitted later than the reset finds nothing.
    if (forgets_prefixes_.exchange(false)) loop_->forget_prefixes(now_ns);
    for (Arrival& arrival : arrivals) loop_->take(std::move(arrival), now_ns);
    for (const sched::RequestId id : cancelled) loop_->cancel(id, now_ns);
    for (const std::string& node : take_drains()) loop_->drain(node);
    return !arrivals.empty();
  }

  std::vector<std::string> take_drains() {
    Lock lock(drains_mutex_);
    return std::exchange(drains_, {});
  }

  // What other threads may see, as it is now.
  void look_back() {
    can_serve_extended_.store(loop_->can_serve_extended(), std::memory_order_relaxed);
    can_serve_.store(loop_->can_serve(), std::memory_order_relaxed);
    kv_usage_.store(loop_->kv_usage(), std::memory_order_relaxed);
    ClusterStatus status = loop_->status(clock_.now_ns());
    Lock lock(status_mutex_);
    status_ = std::move(status);
  }

  const GatewayProcessConfig config_;
  registry::Registry& registry_;
  const Clock& clock_;
  engine::AdmissionGate gate_;
  HandoffMetrics metrics_;
  BoundedQueue<Arrival> mailbox_;
  rpc::RpcInbox inbox_;                // wakes the thread, whatever there is to do
  std::unique_ptr<GatewayLoop> loop_;  // of the gateway thread, once that runs
  std::unique_ptr<registry::RegistryWatch> watch_;
  std::thread thread_;

  std::atomic<bool> is_stopping_{false}, can_serve_{false}, can_serve_extended_{false}, forgets_prefixes_{false};
  std::atomic<double> kv_usage_{0};
  Mutex status_mutex_;
  ClusterStatus status_ GUARDED_BY(status_mutex_);
  Mutex drains_mutex_;
  std::vector<std::string> drains_ GUARDED_BY(drains_mutex_);
};

uint64_t random_incarnation() {
  std::random_device device;
  const uint64_t drawn = uint64_t{device()} << 32 | device();
  return drawn == 0 ? 1 : drawn;
}

}  // namespace

Result<std::unique_ptr<GatewayProcess>> GatewayProcess::start(GatewayProcessConfig config, registry::Registry& registry,
                                                              const Clock& clock, MetricRegistry& metrics) {
  if (config.limits.max_model_len == 0 || config.limits.vocab_size == 0) {
    return Error{ErrorCode::kInvalidArgument, "a gateway needs the model's length and vocabulary"};
  }
  if (config.policy.self.id.empty()) config.policy.self.id = "gateway";
  if (config.policy.self.incarnation == 0) config.policy.self.incarnation = random_incarnation();
  if (config.policy.router) config.policy.router->seed = config.policy.self.incarnation;
  auto process = std::make_unique<Process>(std::move(config), registry, clock, metrics);
  TRY(process->start());
  return std::unique_ptr<GatewayProcess>(std::move(process));
}

}  // namespace tandem::gateway
