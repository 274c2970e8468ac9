#pragma once
// GatewayProcess: the gateway of a cluster as a Generator. Joins role::Gateway with control streams (net/rpc) to the
// nodes that a registry names; what a client may ask of one process it may ask here.
//
// Two threads of its own: the gateway's, which owns the policy and the streams and publishes to the sinks, and the
// registry's, which polls. Any thread may call.

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "cluster/registry/registry.h"
#include "cluster/role/gateway.h"
#include "net/rpc/rpc_options.h"
#include "serve/engine/generator.h"
#include "trace/span.h"

namespace tandem::gateway {

struct GatewayProcessConfig {
  role::GatewayConfig policy;        // self.incarnation 0: drawn at start; max_requests: alive, over it kUnavailable
  rpc::RpcOptions rpc;
  engine::GeneratorLimits limits;    // of the model, by its metadata; max_waiting follows from the queue's limits
  std::string model_name;            // goes with each request; label of the metrics

  // The queue: requests that no pair of nodes has taken yet. 0: no limit.
  uint32_t max_queue_length = 256;
  uint64_t max_queued_tokens = 0;    // of prompts
  uint32_t max_queued_per_tenant = 0;
  double max_queue_s = 0;            // predicted until the last of it has begun

  trace::SpanSink* spans = nullptr;  // gets the requests' timelines; outlives the process. Null: nobody wants them

  double registry_poll_s = 0.2;
  double tick_s = 0.005;             // how often the policy looks; silence is judged as finely
};

class GatewayProcess : public engine::Generator {
 public:
  // Connects to the registry's nodes as they become ready; there need not be one yet. Registry, clock and metrics
  // outlive it. kInvalidArgument: limits without max_model_len or vocab_size. Else: as RpcClient::open().
  static Result<std::unique_ptr<GatewayProcess>> start(GatewayProcessConfig config, registry::Registry& registry,
                                                       const Clock& clock, MetricRegistry& metrics);
  // stop(), if nobody called it.
  ~GatewayProcess() override = default;

  // Generator::submit() and cancel(). Also kUnavailable: no node that prefills or none that decodes is ready.

  // Whether a node that prefills and one that decodes are ready: submit() takes requests.
  virtual bool can_serve() const = 0;

  // {"nodes": [{"id", "role": "prefill|decode|mixed|gateway", "state": "starting|ready|draining|suspect|dead|left",
  // "pid", "incarnation", "role_epoch", "running", "waiting",
  // "kv": {"private_total", "private_free", "shared_total", "shared_free"}}], "view"}.
  // A node that serves its own metrics has their URL as "metrics". This gateway is one of the nodes.
  // Numbers of a node that has not said them are null.
  virtual std::string status_json() = 0;

  // No new work for the node, its decodes move elsewhere. Goes on without the registry, which is told too, so that
  // other gateways do the same. kNotFound: no such node.
  virtual Status drain(const std::string& node) = 0;
  // One transaction of the registry (Registry::flip_role); returns the new epoch. Decodes that the new role does not
  // keep move elsewhere.
  virtual Result<uint64_t> set_role(const std::string& node, handoff::Role role) = 0;

  // submit() refuses from now on.
  virtual void begin_drain() = 0;
  // False when `timeout_s` passed and some request is still alive.
  virtual bool wait_idle(double timeout_s) const = 0;
  // Ends what is alive with kUnavailable, then the threads. Again: nothing.
  virtual void stop() = 0;
};

}  // namespace tandem::gateway
