#include "api/cluster/cluster_api.h"

#include <doctest/doctest.h>

#include "base/log.h"
#include "net/http/http_server.h"
#include "testing/raw_client.h"

namespace tandem::cluster_api {
namespace {

using testing::RawAnswer;

struct ScriptedControl final : ClusterControl {
  std::string status_json() override { return R"({"nodes":[]})"; }
  std::string trace_json() override { return R"({"traceEvents":[]})"; }
  Status drain(const std::string& node) override {
    if (node == "nobody") return Error{ErrorCode::kNotFound, "no node is called nobody"};
    told += "drain " + node + "\n";
    return Done{};
  }
  Result<uint64_t> set_role(const std::string& node, handoff::Role role) override {
    if (node == "last") return Error{ErrorCode::kInvalidArgument, "it is the last of its role"};
    told += "role " + node + " " + std::to_string(static_cast<int>(role)) + "\n";
    return uint64_t{42};
  }
  std::string told;
};

struct Server {
  ScriptedControl control;
  ClusterApi api;
  std::unique_ptr<http::HttpServer> server;

  explicit Server(const std::string& key = {}, bool is_open = true) : api(key) {
    set_log(LogLevel::kError, LogFormat::kText);
    if (is_open) api.open(control);
    auto started = http::HttpServer::start(
        {}, [this](http::HttpRequest request, auto writer) { api(std::move(request), std::move(writer)); });
    REQUIRE(started);
    server = std::move(started).value();
  }
  RawAnswer get(std::string_view path, std::string_view headers = {}) const {
    return testing::fetch(server->port(), "GET", path, {}, headers);
  }
  RawAnswer post(std::string_view path, std::string_view body = {}) const {
    return testing::fetch(server->port(), "POST", path, body, body.empty() ? "Content-Length: 0\r\n" : "");
  }
};

// The answer to a request that came from elsewhere, without a server.
int status_from_elsewhere(const ClusterApi& api, const http::Headers& headers) {
  struct Writer final : http::ResponseWriter {
    void send(int sent, http::Headers, std::string) override { status = sent; }
    void begin_stream(int, http::Headers, http::StreamIdle) override {}
    void write(std::string) override {}
    void end() override {}
    void on_disconnect(std::function<void()>) override {}
    void post(std::function<void()>) override {}
    int status = 0;
  };
  const auto writer = std::make_shared<Writer>();
  http::HttpRequest request;
  request.method = "GET";
  request.path = "/cluster/status";
  request.headers = headers;
  api(request, writer);
  return writer->status;
}

TEST_CASE("status, drain and role reach the control; their errors keep their meaning") {
  Server server;
  const RawAnswer status = server.get("/cluster/status");
  CHECK(status.status == 200);
  CHECK(status.body == R"({"nodes":[]})");
  CHECK(status.header("Content-Type") == "application/json");
  CHECK(server.get("/cluster/trace").body == R"({"traceEvents":[]})");
  CHECK(server.post("/cluster/nodes/p1/drain").body == R"({"node":"p1","state":"draining"})");
  CHECK(server.post("/cluster/nodes/a%2Fb/role", R"({"role":"decode"})").body ==
        R"({"node":"a/b","role":"decode","role_epoch":42})");
  CHECK(server.control.told == "drain p1\nrole a/b " + std::to_string(static_cast<int>(handoff::Role::kDecode)) + "\n");
  CHECK(server.post("/cluster/nodes/nobody/drain").status == 404);
  const RawAnswer last = server.post("/cluster/nodes/last/role", R"({"role":"mixed"})");
  CHECK(last.status == 400);
  CHECK(last.body.find("the last of its role") != std::string::npos);
}

TEST_CASE("what is no order is refused and nobody is told") {
  Server server;
  for (const char* body : {"", "{", "{}", R"({"role":"gateway"})", R"({"role":1})", R"("decode")"}) {
    CHECK_MESSAGE(server.post("/cluster/nodes/p1/role", body).status == 400, body);
  }
  CHECK(server.post("/cluster/nodes/p1/restart").status == 404);
  CHECK(server.post("/cluster/nodes/p1").status == 404);
  CHECK(server.get("/cluster/nodes/p1/drain").status == 405);
  CHECK(server.get("/cluster/else").status == 404);
  CHECK(server.control.told.empty());
}

TEST_CASE("this machine's programs need no key; its web pages and what proxies pass on do") {
  Server server("secret");
  CHECK(server.get("/cluster/status").status == 200);
  for (const char* header : {"Origin: http://127.0.0.1:8000\r\n", "Sec-Fetch-Site: same-origin\r\n",
                             "X-Forwarded-For: 10.0.0.1\r\n", "Forwarded: for=10.0.0.1\r\n", "Via: 1.1 proxy\r\n",
                             "X-Real-IP: 10.0.0.1\r\n"}) {
    CHECK_MESSAGE(server.get("/cluster/status", header).status == 403, header);
    CHECK(server.get("/cluster/status", std::string(header) + "Authorization: Bearer secret\r\n").status == 200);
  }
}

TEST_CASE("others need the admin key, and where there is none they have no way in") {
  const ClusterApi with_key("secret"), without_key("");
  CHECK(status_from_elsewhere(with_key, {}) == 403);
  CHECK(status_from_elsewhere(with_key, {{"Authorization", "Bearer secreT"}}) == 403);
  CHECK(status_from_elsewhere(with_key, {{"Authorization", "Bearer secret"}}) == 503);  // may ask, but it is not open
  CHECK(status_from_elsewhere(with_key, {{"X-Api-Key", "secret"}}) == 503);
  CHECK(status_from_elsewhere(without_key, {{"Authorization", "Bearer "}}) == 403);
  CHECK(status_from_elsewhere(without_key, {}) == 403);
}

TEST_CASE("before the gateway has started it is 503") {
  CHECK(Server({}, false).get("/cluster/status").status == 503);
}

}  // namespace
}  // namespace tandem::cluster_api
