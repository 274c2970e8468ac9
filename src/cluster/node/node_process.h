#pragma once
// NodeProcess: a node of a cluster as a library. Joins role::Node with an engine thread, gateways' session streams and
// the KV data plane, and keeps the node's record in the registry.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/result.h"
#include "cluster/node/kv_memory.h"
#include "cluster/node/model_engine.h"
#include "cluster/registry/registry.h"
#include "cluster/role/node.h"
#include "net/rpc/rpc_options.h"
#include "net/transport/loopback.h"
#include "trace/span.h"

namespace tandem::node {

struct NodeProcessConfig {
  role::NodeConfig policy;  // an incarnation of 0: drawn
  ModelEngineConfig engine;
  std::string control_host = "127.0.0.1";
  uint16_t control_port = 0;  // 0: any
  std::string metrics_url = {};  // where others find what `metrics` holds; for the registry
  std::string data_address;   // to listen on: "shm:PATH", "tcp:HOST:PORT", "ucx:HOST:PORT", "loop:NAME"
  uint64_t kv_bytes_per_s = 0;  // to each peer; 0: as many as go
  bool has_spare_core = true;   // beside the engine's; without one, transfers that come give way to decodes
  rpc::RpcOptions rpc;
  trace::SpanSink* spans = nullptr;  // gets what the node measures of its requests; outlives it
  transport::LoopbackHub* hub = nullptr;  // of loop: addresses; outlives the process
};

struct NodeLoad {
  uint32_t num_requests = 0;   // that it has anything of
  uint32_t num_free_private = 0, num_private = 0, num_free_shared = 0, num_shared = 0;  // blocks
};

// Threads: the engine's, the registry's, which polls, and one for everything else, so that beats go out while a step
// runs and while the registry is silent. Calls from any thread.
class NodeProcess {
 public:
  // Listens, joins the registry as ready, and serves. References outlive it. Errors: an address that cannot be listened
  // on, a registry that cannot be reached.
  static Result<std::unique_ptr<NodeProcess>> start(NodeProcessConfig config, sched::StepExecutor& executor,
                                                    KvMemory& memory, registry::Registry& registry,
                                                    StopRuleMaker make_stop_rule, const Clock& clock,
                                                    MetricRegistry& metrics);
  // As a crash to the others: connections break, the registry's record stays. stop() leaves it properly.
  virtual ~NodeProcess() = default;

  virtual uint16_t control_port() const = 0;
  virtual const handoff::NodeRef& self() const = 0;
  virtual NodeLoad load() const = 0;
  virtual bool is_idle() const = 0;
  // Whether an operator has taken it out, which its record in the registry says.
  virtual bool is_told_to_drain() const = 0;

  // No new requests from now on; the registry says so too.
  virtual void drain() = 0;
  // Leaves the registry and ends. What still runs goes on elsewhere.
  virtual void stop() = 0;
};

}  // namespace tandem::node
