#include "cluster/gateway/gateway_loop.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/wire/session_codec.h"

namespace tandem::gateway {

using handoff::Nanos;
using registry::NodeState;

GatewayLoop::GatewayLoop(role::GatewayConfig config, NodeStreams streams, engine::AdmissionGate& gate,
                         HandoffMetrics& metrics, trace::SpanSink* spans)
    : config_(std::move(config)),
      streams_(std::move(streams)),
      gate_(gate),
      metrics_(metrics),
      timeline_(config_.self.id, spans),
      policy_(config_) {
  metrics_.set_part_sink([this](const MeasuredPart& part) { timeline_.add(part); });
}

handoff::RequestId GatewayLoop::id_of(sched::RequestId id) const {
  return {config_.self.incarnation, static_cast<uint64_t>(id)};
}

void GatewayLoop::take(Arrival arrival, Nanos now) {
  const handoff::RequestId id = id_of(arrival.id);
  const handoff::RequestState& state = arrival.state;
  clients_.open(arrival.id, std::move(arrival.sink), static_cast<uint32_t>(state.choices.size()),
                state.sampling.num_logprobs >= 0, arrival.hides_tokens);
  metrics_.on_arrival(id, state.prompt.size(), now, arrival.hides_tokens);
  const role::Ask ask{arrival.deadline, arrival.priority, traceparent_of(arrival.trace), std::move(arrival.tenant)};
  timeline_.open(id, arrival.trace, now);
  if (auto taken = policy_.submit(id, std::move(arrival.state), now, ask); !taken) {
    metrics_.on_end(id);
    timeline_.end(id, "refused", now);
    clients_.end(arrival.id, std::move(taken).error());
  }
}

void GatewayLoop::cancel(sched::RequestId id, Nanos now) {
  role::GatewayOuts outs;
  policy_.cancel(id_of(id), now, outs);
  carry_out(outs, now);
}

void GatewayLoop::on_view(const registry::View& view, Nanos now) {
  const registry::ViewKeeper::Change change = view_.on_view(view);
  for (const registry::NodeRecord& record : change.added) apply(record, now);
  for (const registry::NodeRecord& record : change.changed) apply(record, now);
  for (const std::string& id : change.retired) policy_.retire_node(id);
  for (const std::string& id : change.removed) policy_.remove_node(id);
}

// What a record says counts for the process that it names.
void GatewayLoop::apply(const registry::NodeRecord& record, Nanos now) {
  if (record.state == NodeState::kReady) policy_.add_node(record.id);
  if (record.state == NodeState::kLeft) policy_.retire_node(record.id);
  const auto it = policy_.links().find(record.id);
  if (it == policy_.links().end() || it->second.hello.from.incarnation != record.incarnation) return;
  if (record.state == NodeState::kDraining) policy_.drain(record.id);
  role::GatewayOuts outs;
  policy_.set_role(record.id, record.role, record.role_epoch, now, outs);
  carry_out(outs, now);
}

void GatewayLoop::on_event(const rpc::RpcEvent& event, Nanos now) {
  const auto key = streams_.find(*event.stream);
  if (!key) return;
  if (event.kind == rpc::RpcEvent::Kind::kFrame) return on_message(*key, event.frame, now);
  if (event.kind != rpc::RpcEvent::Kind::kClosed) return;
  streams_.forget(*key);
  log_unmet(*key, event.reason);
  role::GatewayOuts outs;
  lose(*key, now, outs, event.reason.code == ErrorCode::kNotFound);
  carry_out(outs, now);
}

// Of tries in a row that bring no Hello only the first is said.
void GatewayLoop::log_unmet(const NodeStreams::Key& key, const Error& why) const {
  const auto link = policy_.links().find(key.node);
  if (link == policy_.links().end() || link->second.state != role::LinkState::kOpening) return;
  if (link->second.reopen_pause != 0) return;
  log_warning("cluster/gateway", "no session with a node", {{"node", key.node}, {"why", why.message}});
}

void GatewayLoop::on_message(const NodeStreams::Key& key, const std::string& frame, Nanos now) {
  auto message = wire::decode_session(frame);
  role::GatewayOuts outs;
  if (!message) {
    log_error("cluster/gateway", "a node sends what is no message",
              {{"node", key.node}, {"error", message.error().message}});
    streams_.close(key);
    lose(key, now, outs);
  } else if (message->has_value()) {
    policy_.on_stream_message(key.node, key.stream, **message, now, outs);
  }
  carry_out(outs, now);
  if (!message || !*message || !std::holds_alternative<handoff::Hello>(**message)) return;
  view_.on_session_opened(key.node);
  const auto record = view_.nodes().find(key.node);
  if (record != view_.nodes().end()) apply(record->second, now);
}

void GatewayLoop::lose(const NodeStreams::Key& key, Nanos now, role::GatewayOuts& next, bool is_refused) {
  policy_.on_stream_closed(key.node, key.stream, now, next, is_refused);
  on_session_closed(key.node);
}

void GatewayLoop::on_session_closed(const std::string& node) {
  if (view_.on_session_closed(node)) policy_.remove_node(node);
}

void GatewayLoop::open_stream(const role::OpenStream& open, Nanos now, role::GatewayOuts& next) {
  const auto record = view_.nodes().find(open.node);
  if (record == view_.nodes().end()) return policy_.on_stream_closed(open.node, open.stream, now, next);
  streams_.connect({open.node, open.stream}, record->second.control);
}

// What a send that fails brings about comes after the rest, as its own event would.
void GatewayLoop::carry_out(role::GatewayOuts& outs, Nanos now) {
  while (!outs.empty()) {
    role::GatewayOuts next;
    for (role::GatewayOut& out : outs) {
      if (const auto* open = std::get_if<role::OpenStream>(&out)) {
        open_stream(*open, now, next);
      } else if (const auto* close = std::get_if<role::CloseStream>(&out)) {
        streams_.close({close->node, close->stream});
        on_session_closed(close->node);
      } else if (const auto* send = std::get_if<role::SendNode>(&out)) {
        const NodeStreams::Key key{send->node, send->stream};
        if (!streams_.send(key, send->message)) lose(key, now, next);
      } else if (const auto* token = std::get_if<role::DeliverToken>(&out)) {
        metrics_.on_token(token->entry, now);
        clients_.add(id_of(token->entry.request), token->entry);
      } else if (auto* ended = std::get_if<role::RequestEnded>(&out)) {
        metrics_.on_end(ended->request);
        timeline_.end(ended->request, ended->error ? ended->message : "complete", now);
        std::optional<Error> error;
        if (ended->error) error = Error{*ended->error, std::move(ended->message)};
        clients_.end(id_of(ended->request), std::move(error));
      } else if (const auto* moved = std::get_if<role::RequestMoved>(&out)) {
        on_moved(*moved, now);
      } else if (const auto* timings = std::get_if<role::NodeTimings>(&out)) {
        metrics_.on_timings(*timings, now);
      }
    }
    outs = std::move(next);
  }
}

void GatewayLoop::on_moved(const role::RequestMoved& moved, Nanos now) {
  metrics_.on_moved(moved, now);
  const bool has_left_queue = moved.from == handoff::GatewayRequest::Phase::kQueued && moved.attempt > 0;
  if (has_left_queue) {
    clients_.set_scheduled(id_of(moved.request), now);
    gate_.start(id_of(moved.request), now);
  }
  if (!moved.is_new_attempt || moved.attempt < 2) return;
  log_info("cluster/gateway", "a request goes on elsewhere",
           {{"request", std::to_string(moved.request.low)},
            {"attempt", std::to_string(moved.attempt)},
            {"cause", cause_name(moved.cause)}});
}

void GatewayLoop::forget_prefixes(Nanos now) {
  role::GatewayOuts outs;
  policy_.forget_prefixes(outs);
  carry_out(outs, now);
}

void GatewayLoop::tick(Nanos now) {
  role::GatewayOuts outs;
  policy_.on_tick(now, outs);
  carry_out(outs, now);
  metrics_.on_levels(policy_, gate_.num_queued(), view_.num_mass_losses());
  metrics_.on_kv_usage(kv_usage());
  engine::Pace pace;
  pace.seconds_per_prefill_token = metrics_.seconds_per_prefill_token();
  pace.step_seconds = metrics_.seconds_per_output_token();
  pace.mean_output_tokens = metrics_.mean_output_tokens();
  gate_.set_pace(pace);
}

void GatewayLoop::publish() {
  for (const sched::RequestId id : clients_.publish()) gate_.end(id);
}

void GatewayLoop::end_all(const Error& error, Nanos now) {
  for (const sched::RequestId id : clients_.open_ids()) {
    metrics_.on_end(id_of(id));
    timeline_.end(id_of(id), error.message, now);
    clients_.end(id, error);
  }
  publish();
  streams_.close_all();
}

double GatewayLoop::kv_usage() const {
  uint64_t num_blocks = 0, num_free = 0;
  for (const auto& [node, link] : policy_.links()) {
    if (link.state != role::LinkState::kOpen || link.beat.io_seq == 0) continue;
    num_blocks += link.hello.private_blocks;
    num_free += std::min(link.hello.private_blocks, link.beat.private_free);
  }
  return num_blocks == 0 ? 0 : static_cast<double>(num_blocks - num_free) / static_cast<double>(num_blocks);
}

ClusterStatus GatewayLoop::status(Nanos now) const {
  ClusterStatus status = status_of(view_, policy_, config_.timing, now);
  NodeStatus self;
  self.id = config_.self.id;
  self.role = "gateway";
  self.state = gate_.is_closed() ? "draining" : "ready";
  self.pid = static_cast<uint64_t>(getpid());
  self.incarnation = config_.self.incarnation;
  self.num_waiting = gate_.num_queued();
  self.num_running = gate_.num_alive() - std::min(gate_.num_alive(), self.num_waiting);
  status.nodes.push_back(std::move(self));
  return status;
}

}  // namespace tandem::gateway
