// Known faults of servers in when they send what: silence that proxies cut, bursts, first chunks that hold no token.

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "api/openai/engine_server_for_test.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;
using testing::RawClient;

constexpr auto kSilence = std::chrono::milliseconds(500);

std::string request_text(std::string_view path, const std::string& body) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The faults: headers that wait for the first token; a stream begun without an interval for comments.
TEST_CASE("API-24: headers come at admission, comments while nothing else does, and then the stream as ever") {
  ApiConfig config = ApiServer::default_config();
  config.ping_interval_ms = 50;
  ApiServer server("Hello!", config);
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const std::string body = R"({"prompt":"x","messages":[{"role":"user","content":"x"}],"stream":true})";
    server.generator->hold(true);
    RawClient client(server.port());
    const auto begin = std::chrono::steady_clock::now();
    client.send(request_text(path, body));
    const std::string head = client.read_until("\r\n\r\n");
    CHECK(seconds_since(begin) < 0.1);
    CHECK(head.starts_with("HTTP/1.1 200"));
    CHECK(head.find("text/event-stream") != std::string::npos);
    std::this_thread::sleep_for(kSilence);
    server.generator->hold(false);
    const std::string silent = client.read_until("data: ");
    CHECK(count(silent, ": ping\n\n") >= 4);
    CHECK(count(silent, ": ping\n\n") <= 12);
    const std::string rest = client.read_until("data: [DONE]");
    CHECK(count(rest, "\"finish_reason\":\"stop\"") == 1);
    CHECK(count(rest, ": ping") <= 1);
  }
  // The same bytes without the comments.
  const std::string fields = R"("prompt":"x","stream":true)";
  CHECK(streamed_choice(events_of(server.post("/v1/completions", "{" + fields + "}").body), 0).text == "Hello!");
}

// The fault: the role's chunk sent when the stream begins.
TEST_CASE("BEN-03: the chunk with the role comes with the first token, not before") {
  ApiServer server("Hello!");
  server.generator->hold(true);
  RawClient client(server.port());
  const auto begin = std::chrono::steady_clock::now();
  client.send(request_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"stream":true})"));
  client.read_until("\r\n\r\n");
  std::thread later([&server] {
    std::this_thread::sleep_for(kSilence);
    server.generator->hold(false);
  });
  client.read_until("\"role\":\"assistant\"");
  CHECK(seconds_since(begin) >= 0.4);
  client.read_until("\"content\":\"H\"");
  CHECK(seconds_since(begin) < 5);
  later.join();
  client.read_until("[DONE]");
}

// The fault: events kept until three are there.
TEST_CASE("BEN-04: each event is on its way when it is made: reads carry one event each") {
  constexpr int kTokens = 40;
  EngineServer server;
  server.step_ms = 20;
  double best_share = 0;
  for (int attempt = 0; attempt < 3 && best_share < 0.9; ++attempt) {  // the machine may be busy
    RawClient client(server.server->port());
    client.send(request_text("/v1/completions", R"({"prompt":"x","ignore_eos":true,"stream":true,"max_tokens":)" +
                                                    std::to_string(kTokens) + "}"));
    int num_reads = 0, num_single = 0, num_events = 0;
    while (num_events < kTokens) {
      const std::string bytes = client.read_once();
      REQUIRE(!bytes.empty());
      const auto events = static_cast<int>(count(bytes, "\"finish_reason\":null"));
      num_events += events;
      num_reads += events > 0;
      num_single += events == 1;
    }
    best_share = std::max(best_share, static_cast<double>(num_single) / num_reads);
  }
  CHECK(best_share >= 0.9);
}

}  // namespace
}  // namespace tandem::openai
