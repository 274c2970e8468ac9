#pragma once
// ClusterApi: a cluster's operator at the gateway: GET /cluster/status, GET /cluster/trace,
// POST /cluster/nodes/NODE/drain and POST /cluster/nodes/NODE/role with {"role": "prefill"}. For programs on the
// gateway's own machine, and for whoever has the admin key; all others get 403.

#include <atomic>
#include <string>

#include "cluster/handoff/messages.h"
#include "net/http/router.h"

namespace tandem::cluster_api {

// What the gateway can be told. Any thread; called on I/O threads, so it returns within milliseconds.
class ClusterControl {
 public:
  virtual ~ClusterControl() = default;

  virtual std::string status_json() = 0;
  // The newest requests' timelines, for Perfetto. Some 10 MB at most.
  virtual std::string trace_json() = 0;
  // kNotFound: no such node.
  virtual Status drain(const std::string& node) = 0;
  // The new role's epoch. Also kInvalidArgument: this node may not change its role now.
  virtual Result<uint64_t> set_role(const std::string& node, handoff::Role role) = 0;
};

// Any thread. Outlives the server that calls it.
class ClusterApi {
 public:
  // An empty key: there is none, and only this machine may ask.
  explicit ClusterApi(std::string admin_key);

  // `control` outlives the server. Before it, requests are answered 503.
  void open(ClusterControl& control) { control_ = &control; }

  static bool is_own_path(const std::string& path) { return path.starts_with("/cluster/"); }
  void operator()(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) const;

 private:
  void post(const http::HttpRequest& request, http::ResponseWriter& writer) const;

  const std::string admin_key_;
  http::Router router_;
  std::atomic<ClusterControl*> control_{nullptr};
};

}  // namespace tandem::cluster_api
