// status, drain and role: what an operator says to a gateway.

#include <fmt/format.h>

#include "apps/state_folder.h"
#include "apps/subcommands.h"
#include "base/json.h"
#include "cluster/registry/registry.h"
#include "cluster/supervisor/status_table.h"
#include "net/fetch/http_get.h"

namespace tandem::apps {
namespace {

Result<std::string> gateway_url(const OptionValues& values) {
  if (values.has("gateway")) {
    std::string url = values.text("gateway");
    while (!url.empty() && url.back() == '/') url.pop_back();
    return url;
  }
  const std::string& cluster = values.text("cluster");
  TRY_ASSIGN(const StateFolder folder, StateFolder::open(cluster));
  auto url = read_short_file(folder.gateway_address());
  if (url) return url;
  return Error{ErrorCode::kNotFound,
               fmt::format("no `tandem up` of cluster {} runs here; name its gateway with --gateway URL", cluster)};
}

// What an answer that is not 2xx says: {"error": {"message": ...}}.
Error error_of(const fetch::HttpAnswer& answer) {
  std::string message = fmt::format("the gateway answers {}", answer.status);
  const auto json = JsonValue::parse(answer.body);
  const JsonValue* error = json ? json.value().find("error") : nullptr;
  const JsonValue* text = error != nullptr ? error->find("message") : nullptr;
  if (text != nullptr && text->if_string() != nullptr) message += ": " + *text->if_string();
  return {answer.status == 404 ? ErrorCode::kNotFound : ErrorCode::kUnavailable, std::move(message)};
}

// The body of the answer. `json` absent: a GET.
Result<std::string> ask_gateway(const OptionValues& values, const std::string& path, std::optional<std::string> json) {
  TRY_ASSIGN(const std::string url, gateway_url(values));
  TRY_ASSIGN(std::string key, admin_key(values));
  fetch::HttpCall call{url + path, std::move(json), std::move(key)};
  if (values.has("gateway-ca")) call.tls.ca_file = values.text("gateway-ca");
  TRY_ASSIGN(fetch::HttpAnswer answer, fetch::http_call(call));
  if (answer.status / 100 != 2) return error_of(answer);
  return std::move(answer.body);
}

Result<std::string> tell_node(const cli::Invocation& invocation, const std::string& order, std::string json) {
  const std::string& node = invocation.positionals[0];
  TRY(check_name("node", node));
  return ask_gateway(invocation.values, "/cluster/nodes/" + node + "/" + order, std::move(json));
}

}  // namespace

Result<int> run_status(const cli::Invocation& invocation) {
  TRY_ASSIGN(const std::string status, ask_gateway(invocation.values, "/cluster/status", std::nullopt));
  if (invocation.values.is_on("json")) {
    fmt::print("{}\n", status);
    return kExitDone;
  }
  TRY_ASSIGN(const std::vector<supervisor::NodeRow> rows, supervisor::rows_of_status(status));
  fmt::print("{}{}", supervisor::status_sentence(rows), supervisor::status_table(rows));
  return kExitDone;
}

Result<int> run_drain(const cli::Invocation& invocation) {
  TRY(tell_node(invocation, "drain", "{}"));
  fmt::print("{} gets no new work and ends when its requests have moved\n", invocation.positionals[0]);
  return kExitDone;
}

Result<int> run_role(const cli::Invocation& invocation) {
  const std::string& role = invocation.positionals[1];
  if (!registry::role_of(role)) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("'{}' is no role: prefill, decode or mixed", role)};
  }
  JsonWriter json;
  json.begin_object().key("role").string(role).end_object();
  TRY(tell_node(invocation, "role", json.take()));
  fmt::print("{} is asked for {} from now on\n", invocation.positionals[0], role);
  return kExitDone;
}

}  // namespace tandem::apps
