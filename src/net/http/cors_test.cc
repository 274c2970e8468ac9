#include "net/http/cors.h"

#include "net/http/http_bench_for_test.h"

namespace tandem::http {
namespace {

using testing::fetch;
using testing::RawAnswer;

struct CorsServer {
  std::unique_ptr<HttpServer> server;

  explicit CorsServer(std::vector<std::string> origins) {
    auto started = HttpServer::start({}, with_cors(std::move(origins), [](HttpRequest request, auto writer) {
                                       if (request.path == "/stream") {
                                         writer->begin_stream(200, {}, {});
                                         writer->write("x");
                                         writer->end();
                                       } else {
                                         writer->send(request.path == "/wrong" ? 401 : 200,
                                                      {{"Content-Type", "text/plain"}}, request.method);
                                       }
                                     }));
    REQUIRE(started);
    server = std::move(started).value();
  }
  RawAnswer ask(const char* method, const char* path, const std::string& headers) const {
    return fetch(server->port(), method, path, "", headers);
  }
};

const std::string kOurs = "Origin: https://chat.example\r\n", kOther = "Origin: https://evil.example\r\n";
const std::string kPreflight =
    "Access-Control-Request-Method: POST\r\n"
    "Access-Control-Request-Headers: authorization,content-type\r\n";

TEST_CASE("without a list no page of another origin may read anything, and OPTIONS is nothing special") {
  const CorsServer cors({});
  for (const char* path : {"/x", "/stream"}) {
    CHECK(cors.ask("GET", path, kOurs).header("Access-Control-Allow-Origin").empty());
  }
  CHECK(cors.ask("OPTIONS", "/x", kOurs + kPreflight).body == "OPTIONS");
}

TEST_CASE("listed origins are told that they may, others get the same answers without a word") {
  const CorsServer cors({"https://chat.example", "http://localhost:3000"});
  for (const char* path : {"/x", "/stream", "/wrong"}) {
    const RawAnswer ours = cors.ask("GET", path, kOurs);
    CHECK(ours.header("Access-Control-Allow-Origin") == "https://chat.example");
    CHECK(ours.header("Vary") == "Origin");
    const RawAnswer other = cors.ask("GET", path, kOther);
    CHECK(other.header("Access-Control-Allow-Origin").empty());
    CHECK(other.header("Vary") == "Origin");
    CHECK(other.body == ours.body);
  }
  const RawAnswer asked = cors.ask("OPTIONS", "/x", kOurs + kPreflight);
  CHECK(asked.status == 204);
  CHECK(asked.header("Access-Control-Allow-Origin") == "https://chat.example");
  CHECK(asked.header("Access-Control-Allow-Headers") == "authorization,content-type");
  CHECK(asked.header("Access-Control-Allow-Methods").find("POST") != std::string::npos);
  const RawAnswer refused = cors.ask("OPTIONS", "/x", kOther + kPreflight);
  CHECK(refused.status == 204);
  CHECK(refused.header("Access-Control-Allow-Origin").empty());
  CHECK(refused.header("Access-Control-Allow-Headers").empty());
  CHECK(cors.ask("OPTIONS", "/x", "").body == "OPTIONS");  // not from a page
  CHECK(cors.ask("GET", "/x", "").header("Access-Control-Allow-Origin").empty());
}

TEST_CASE("a star lets all in") {
  const CorsServer cors({"*"});
  CHECK(cors.ask("GET", "/x", kOther).header("Access-Control-Allow-Origin") == "*");
  CHECK(cors.ask("OPTIONS", "/x", kOther + kPreflight).header("Access-Control-Allow-Origin") == "*");
}

TEST_CASE("what is no origin is refused by name") {
  for (const char* good : {"*", "https://a.example", "http://localhost:3000", "chrome-extension://abc"}) {
    CHECK_MESSAGE(check_origin(good), good);
  }
  for (const char* bad : {"", "a.example", "https://", "https://a.example/", "https://a.example/x", "://x",
                          "https://u@a.example", "https://a b"}) {
    const Status checked = check_origin(bad);
    CHECK_MESSAGE(!checked, bad);
  }
}

}  // namespace
}  // namespace tandem::http
