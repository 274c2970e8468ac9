#include "api/cluster/cluster_api.h"

#include "base/json.h"
#include "base/log.h"
#include "cluster/registry/registry.h"
#include "net/http/credentials.h"
#include "net/http/http_text.h"

namespace tandem::cluster_api {
namespace {

constexpr std::string_view kNodes = "/cluster/nodes/";

void send_json(http::ResponseWriter& writer, int status, std::string json) {
  writer.send(status, {{"Content-Type", "application/json"}}, std::move(json));
}

void refuse(http::ResponseWriter& writer, int status, std::string_view message) {
  send_json(writer, status, http::default_error_body(status, message));
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return 400;
    case ErrorCode::kNotFound: return 404;
    case ErrorCode::kExhausted: return 429;
    case ErrorCode::kUnavailable:
    case ErrorCode::kDeadline: return 503;
    default: return 500;
  }
}

Result<handoff::Role> role_in(const std::string& body) {
  TRY_ASSIGN(const JsonValue json, JsonValue::parse(body));
  const JsonValue* named = json.find("role");
  const std::string* name = named != nullptr ? named->if_string() : nullptr;
  const auto role = name != nullptr ? registry::role_of(*name) : std::nullopt;
  if (!role) return Error{ErrorCode::kInvalidArgument, R"(the body is {"role": "prefill", "decode" or "mixed"})"};
  return *role;
}

}  // namespace

ClusterApi::ClusterApi(std::string admin_key) : admin_key_(std::move(admin_key)), router_(http::default_error_body) {
  using Writer = std::shared_ptr<http::ResponseWriter>;
  router_.add("GET", "/cluster/status", [this](const http::HttpRequest&, const Writer& writer) {
    send_json(*writer, 200, control_.load()->status_json());
  });
  router_.add("GET", "/cluster/trace", [this](const http::HttpRequest&, const Writer& writer) {
    send_json(*writer, 200, control_.load()->trace_json());
  });
  router_.add("POST", std::string(kNodes) + "*",
              [this](const http::HttpRequest& request, const Writer& writer) { post(request, *writer); });
}

void ClusterApi::operator()(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) const {
  const bool has_key = !admin_key_.empty() && http::is_same_key(http::given_key(request), admin_key_);
  if (!has_key && !http::is_local(request)) {
    return refuse(*writer, 403, "only this machine's own programs and holders of the admin key may ask this");
  }
  if (control_ == nullptr) return refuse(*writer, 503, "the gateway is starting");
  router_(std::move(request), std::move(writer));
}

void ClusterApi::post(const http::HttpRequest& request, http::ResponseWriter& writer) const {
  const std::string_view rest = std::string_view(request.path).substr(kNodes.size());
  const size_t slash = rest.rfind('/');
  const std::string node(rest.substr(0, slash));
  const std::string_view action = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  JsonWriter json;
  json.begin_object().key("node").string(node);
  if (action == "drain") {
    if (const Status done = control_.load()->drain(node); !done) {
      return refuse(writer, status_of(done.error().code), done.error().message);
    }
    json.key("state").string("draining");
  } else if (action == "role") {
    const auto role = role_in(request.body);
    if (!role) return refuse(writer, 400, role.error().message);
    const auto epoch = control_.load()->set_role(node, role.value());
    if (!epoch) return refuse(writer, status_of(epoch.error().code), epoch.error().message);
    json.key("role").string(registry::role_name(role.value())).key("role_epoch").unsigned_integer(epoch.value());
  } else {
    return refuse(writer, 404, "unknown path " + request.path + "; a node can be told drain or role");
  }
  log_info("api/cluster", "an operator's order", {{"node", node}, {"order", std::string(action)}});
  send_json(writer, 200, json.end_object().take());
}

}  // namespace tandem::cluster_api
