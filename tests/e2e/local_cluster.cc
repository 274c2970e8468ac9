#include "e2e/local_cluster.h"

#include "base/check.h"
#include "base/hash.h"
#include "e2e/scoring.h"

namespace tandem::e2e {

using namespace handoff;

struct LocalCluster::LocalNode {
  std::string id;
  std::unique_ptr<runner::ModelRunner> model;
  std::unique_ptr<node::ModelEngine> engine;
  std::unique_ptr<role::Node> policy;
  uint32_t num_layer_groups = 1;

  uint32_t layers_per_group() const { return model->config().num_layers / num_layer_groups; }
  std::vector<uint8_t> read(kv::BlockId block, uint32_t group) {
    const uint32_t count = layers_per_group();
    std::vector<uint8_t> bytes(count * model->kv_layout().layer_stride);
    TANDEM_CHECK(static_cast<bool>(model->read_kv(block, group * count, count, bytes.data())));
    return bytes;
  }
  void write(kv::BlockId block, uint32_t group, const uint8_t* bytes) {
    const uint32_t count = layers_per_group();
    TANDEM_CHECK(static_cast<bool>(model->write_kv(block, group * count, count, bytes)));
  }
};

namespace {

uint64_t checksum_of(const std::vector<uint8_t>& bytes) { return hash_64(bytes.data(), bytes.size()); }

}  // namespace

LocalCluster::LocalCluster(const std::vector<LocalNodeSpec>& specs, const runner::RunnerOptions& options,
                           uint32_t chunk_tokens, const node::MaskMaker& make_masks) {
  role::GatewayConfig config;
  config.self = {"gateway", 7};
  config.ramp = 0;
  gateway_ = std::make_unique<role::Gateway>(std::move(config));
  uint64_t incarnation = 100;
  for (const LocalNodeSpec& spec : specs) {
    auto node = std::make_unique<LocalNode>();
    node->id = spec.id;
    node->model = open_runner(options);
    const runner::ModelRunner& model = *node->model;
    node->num_layer_groups = model.config().num_layers % 2 == 0 ? 2 : 1;
    node::ModelEngineConfig engine;
    engine.block_size = model.block_tokens();
    engine.num_layer_groups = node->num_layer_groups;
    engine.max_sequences = options.max_sequences;
    engine.budget = {chunk_tokens, 0, 1};
    engine.make_masks = make_masks;
    node->engine = std::make_unique<node::ModelEngine>(engine, *node->model, clock_,
                                                       [](const RequestState&) { return nullptr; });
    role::NodeConfig policy;
    policy.self = {spec.id, ++incarnation};
    policy.role = spec.role;
    policy.fingerprint.numerics = model.fingerprint();
    policy.fingerprint.block_size = model.block_tokens();
    policy.pool = {model.num_blocks(), model.num_blocks() / 2, model.block_tokens()};
    policy.num_layer_groups = node->num_layer_groups;
    policy.max_pinned_blocks = model.num_blocks() / 4;
    node->policy = std::make_unique<role::Node>(std::move(policy));
    gateway_->add_node(spec.id);
    nodes_.emplace(spec.id, std::move(node));
  }
}

LocalCluster::~LocalCluster() = default;

RequestId LocalCluster::submit(RequestState state) {
  const RequestId id{0, next_request_++};
  answers_[id].resize(state.choices.size());
  attempts_[id] = 0;
  const Status accepted = gateway_->submit(id, std::move(state), now_);
  TANDEM_CHECK(static_cast<bool>(accepted));
  ++num_open_;
  return id;
}

std::string LocalCluster::error_of(const RequestId& id) const {
  const auto it = errors_.find(id);
  return it == errors_.end() ? std::string() : it->second;
}

void LocalCluster::turn() {
  now_ += kMs;
  role::GatewayOuts outs;
  gateway_->on_tick(now_, outs);
  carry_out(outs);
  for (auto& [id, node] : nodes_) {
    role::NodeActions actions;
    node->policy->on_tick(node->engine->progress(), now_, actions);
    carry_out(*node, actions, {});
  }
  run_queue();
  for (auto& [id, node] : nodes_) run_engine(*node);
  run_queue();
  for (const auto& [id, request] : gateway_->requests()) attempts_[id] = request->attempt();
}

void LocalCluster::run_engine(LocalNode& node) {
  if (!node.engine->has_work()) return;
  for (const role::EngineNews& news : node.engine->run_step()) {
    role::NodeActions actions;
    node.policy->on_engine(news, now_, actions);
    carry_out(node, actions, {});
  }
}

void LocalCluster::run_queue() {
  while (!queue_.empty()) {
    const Call call = std::move(queue_.front());
    queue_.pop_front();
    call();
  }
}

void LocalCluster::with_node(const std::string& id, const std::function<void(LocalNode&, role::NodeActions&)>& event,
                             const std::vector<uint8_t>& payload) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return;
  role::NodeActions actions;
  event(*it->second, actions);
  carry_out(*it->second, actions, payload);
}

void LocalCluster::carry_out(role::GatewayOuts& outs) {
  for (role::GatewayOut& out : outs) {
    if (const auto* open = std::get_if<role::OpenStream>(&out)) {
      streams_[open->node] = open->stream;
      if (nodes_.contains(open->node)) continue;
      queue_.push_back([this, node = open->node, stream = open->stream] {
        role::GatewayOuts closed;
        gateway_->on_stream_closed(node, stream, now_, closed);
        carry_out(closed);
      });
    } else if (auto* send = std::get_if<role::SendNode>(&out)) {
      queue_.push_back([this, send = std::move(*send)] {
        with_node(send.node, [&](LocalNode& node, role::NodeActions& actions) {
          node.policy->on_session_message("gateway", send.stream, send.message, now_, actions);
        });
      });
    } else if (const auto* token = std::get_if<role::DeliverToken>(&out)) {
      answers_.at(token->entry.request)[token->entry.choice].push_back(token->entry.token);
    } else if (const auto* ended = std::get_if<role::RequestEnded>(&out)) {
      --num_open_;
      if (ended->error) errors_[ended->request] = ended->message;
    }
  }
  outs.clear();
}

void LocalCluster::carry_out(LocalNode& node, role::NodeActions& actions, const std::vector<uint8_t>& payload) {
  for (role::NodeAction& action : actions) act(node, action, payload);
  actions.clear();
}

void LocalCluster::act(LocalNode& node, role::NodeAction& action, const std::vector<uint8_t>& payload) {
  if (auto* session = std::get_if<role::SendSession>(&action)) {
    queue_.push_back([this, id = node.id, send = std::move(*session)] {
      role::GatewayOuts outs;
      if (nodes_.contains(id)) gateway_->on_stream_message(id, send.stream, send.message, now_, outs);
      carry_out(outs);
    });
  } else if (auto* peer = std::get_if<role::SendPeer>(&action)) {
    send_frame(node, peer->peer, std::move(peer->message), {});
  } else if (auto* block = std::get_if<role::SendBlock>(&action)) {
    ++num_pushed_blocks_;
    std::vector<uint8_t> bytes = node.read(block->block, block->push.layer_group);
    block->push.checksum = checksum_of(bytes);
    block->push.payload.size_bytes = static_cast<uint32_t>(bytes.size());
    send_frame(node, block->peer, block->push, std::move(bytes));
  } else if (auto* mirror = std::get_if<role::SendKv>(&action)) {
    ++num_mirror_frames_;
    std::vector<uint8_t> bytes(mirror->frame.tokens.size() * node.model->kv_slot_bytes());
    uint8_t* next = bytes.data();
    for (const role::Slots& slots : mirror->slots) {
      TANDEM_CHECK(static_cast<bool>(node.model->read_kv_slots(slots.block, slots.begin, slots.count, next)));
      next += slots.count * node.model->kv_slot_bytes();
    }
    send_frame(node, mirror->peer, std::move(mirror->frame), std::move(bytes));
  } else if (const auto* copy = std::get_if<role::CopyBlock>(&action)) {
    node.write(copy->block, copy->layer_group, payload.data());
  } else if (const auto* kv = std::get_if<role::CopyKv>(&action)) {
    const uint8_t* next = payload.data();
    for (const role::Slots& slots : kv->slots) {
      TANDEM_CHECK(static_cast<bool>(node.model->write_kv_slots(slots.block, slots.begin, slots.count, next)));
      next += slots.count * node.model->kv_slot_bytes();
    }
  } else if (auto* prefill = std::get_if<role::StartPrefill>(&action)) {
    node.engine->start_prefill(std::move(*prefill));
  } else if (const auto* stop = std::get_if<role::StopPrefill>(&action)) {
    node.engine->stop_prefill(stop->request);
  } else if (auto* decode = std::get_if<role::StartDecode>(&action)) {
    node.engine->start_decode(std::move(*decode));
  } else if (const auto* extension = std::get_if<role::ExtendTable>(&action)) {
    node.engine->extend(*extension);
  } else if (const auto* end = std::get_if<role::StopDecoding>(&action)) {
    node.engine->stop_decode(end->request);
  }
}

void LocalCluster::send_frame(LocalNode& from, const NodeRef& to, PeerMessage message, std::vector<uint8_t> payload) {
  const NodeRef sender = from.policy->config().self;
  queue_.push_back([this, sender, to, message = std::move(message), payload = std::move(payload)] {
    const uint64_t checksum = checksum_of(payload);
    const auto it = nodes_.find(to.id);
    if (it == nodes_.end() || it->second->policy->config().self != to) {
      return with_node(sender.id, [&](LocalNode& node, role::NodeActions& actions) {
        node.policy->on_peer_lost(to, now_, actions);
      });
    }
    with_node(to.id, [&](LocalNode& node, role::NodeActions& actions) {
      node.policy->on_peer_message(sender, message, checksum, now_, actions);
    }, payload);
  });
}

void LocalCluster::kill(const std::string& id) {
  const NodeRef dead = nodes_.at(id)->policy->config().self;
  nodes_.erase(id);
  role::GatewayOuts outs;
  gateway_->on_stream_closed(id, streams_[id], now_, outs);
  carry_out(outs);
  for (auto& [other, node] : nodes_) {
    role::NodeActions actions;
    node->policy->on_peer_lost(dead, now_, actions);
    carry_out(*node, actions, {});
  }
}

}  // namespace tandem::e2e
