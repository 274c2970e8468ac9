#pragma once
// GatewayLoop: what the gateway's thread does in a round, without the thread: role::Gateway joined with streams, the
// registry's views, clients and metrics. One thread.

#include <memory>
#include <vector>

#include "cluster/gateway/client_updates.h"
#include "cluster/gateway/cluster_status.h"
#include "cluster/gateway/handoff_metrics.h"
#include "cluster/gateway/node_streams.h"
#include "cluster/gateway/request_timeline.h"
#include "cluster/registry/view_keeper.h"
#include "cluster/role/gateway.h"
#include "serve/engine/admission_gate.h"

namespace tandem::gateway {

struct Arrival {
  sched::RequestId id{};
  handoff::RequestState state;
  std::shared_ptr<sched::TokenSink> sink;
  handoff::Nanos deadline = INT64_MAX;
  int32_t priority = 0;
  std::string tenant;
  TraceContext trace;
  bool hides_tokens = false;  // the client wants none: see ClientUpdates::open
};

class GatewayLoop {
 public:
  // References and `spans` outlive it; null: nobody wants them. The gate is told what starts and ends.
  GatewayLoop(role::GatewayConfig config, NodeStreams streams, engine::AdmissionGate& gate, HandoffMetrics& metrics,
              trace::SpanSink* spans);

  void take(Arrival arrival, handoff::Nanos now);
  void cancel(sched::RequestId id, handoff::Nanos now);
  void on_view(const registry::View& view, handoff::Nanos now);
  void on_event(const rpc::RpcEvent& event, handoff::Nanos now);
  void drain(const std::string& node) { policy_.drain(node); }
  void forget_prefixes(handoff::Nanos now);
  void tick(handoff::Nanos now);
  // The news of this round to the clients.
  void publish();
  // Everything ends with `error`; the streams close.
  void end_all(const Error& error, handoff::Nanos now);

  bool can_serve() const { return policy_.can_serve(); }
  bool can_serve_extended() const { return policy_.can_serve_extended(); }
  double kv_usage() const;  // of the private parts, 0 to 1
  ClusterStatus status(handoff::Nanos now) const;

 private:
  void carry_out(role::GatewayOuts& outs, handoff::Nanos now);
  void open_stream(const role::OpenStream& open, handoff::Nanos now, role::GatewayOuts& next);
  void on_message(const NodeStreams::Key& key, const std::string& frame, handoff::Nanos now);
  void log_unmet(const NodeStreams::Key& key, const Error& why) const;
  void lose(const NodeStreams::Key& key, handoff::Nanos now, role::GatewayOuts& next, bool is_refused = false);
  void on_session_closed(const std::string& node);
  void on_moved(const role::RequestMoved& moved, handoff::Nanos now);
  void apply(const registry::NodeRecord& record, handoff::Nanos now);
  handoff::RequestId id_of(sched::RequestId id) const;
  static sched::RequestId id_of(const handoff::RequestId& id) { return sched::RequestId{id.low}; }

  const role::GatewayConfig config_;
  NodeStreams streams_;
  engine::AdmissionGate& gate_;
  HandoffMetrics& metrics_;
  RequestTimeline timeline_;
  role::Gateway policy_;
  registry::ViewKeeper view_;
  ClientUpdates clients_;
};

}  // namespace tandem::gateway
